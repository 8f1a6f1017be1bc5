/* SPDX-License-Identifier: MIT
 *
 * A hub of models for tests: real sockets, a second host for large files, and faults on demand.
 *
 *   fake_hub ROOT [--page N] [--rate BYTES] [--every BYTES KIND,KIND...] [--plain]
 *
 * serves ROOT/ORG/REPO/FILE and prints "HUB_PORT CDN_PORT"; it ends when its standard input does. Hub: 127.0.0.1. Its tree API lists N files a page (2); files of 1024 bytes and more are LFS and lead to 127.0.0.2 under a signature that
 * the fault `expire` makes invalid. A repository with a file .gated is 403 for everybody, one with .private wants the token of FAKE_HUB_TOKEN, and of one with .huge every size is beyond all measure. Any commit is served with what is on disk: that is how files change in place. --plain: http://HUB/ORG/REPO/FILE
 * as of a plain web server is served too, and --rate is for each connection.
 *
 * --every: each time that so many bytes of large files went out, the next kind in turn happens: to the next answer, or, when it is reset, stall, corrupt or short, to any in its middle. On the hub's port: /_fault?kind=K&n=N makes the next N answers with file content faulty; /_stats says what went out, as "NAME VALUE" lines:
 * requests, bytes, leaks (requests with a token at the second host), bytes:FILE, faults. /_zero forgets it.
 *
 * Kinds: reset, stall, slow, corrupt (one byte near the middle), noise (two bytes of each piece, hardly ever the same), expire, 429, 503, short, long, wronglength, otherrange, html, norange, gzip, notfound, downgrade, loop.
 */
#include <os/os.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_MAX 16384
#define FILES_MAX 512
#define KINDS_MAX 32
#define PIECE 65536
#define LFS_MIN 1024

struct file {
    char path[512]; /* ORG/REPO/FILE */
    uint64_t size, mtime_ns, sent;
    char sha256[OS_SHA256_HEX], sha1[OS_SHA256_HEX];
};

static const char *root, *token;
static size_t page = 2;
static uint64_t rate, every;
static char kinds[KINDS_MAX][16];
static size_t n_kinds, next_kind;
static bool plain;
static uint16_t ports[2];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file files[FILES_MAX];
static size_t n_files;
static uint64_t generation = 1, requests, total, leaks, faults, next_fault;
static char pending[16];
static uint64_t n_pending;

static void die(const char *what)
{
    (void)fprintf(stderr, "fake_hub: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */

/* What is at ORG/REPO/FILE at this moment; NULL: nothing. Under lock. */
static struct file *file_at(const char *path)
{
    char full[1024];
    struct stat st;
    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    if (strstr(path, "..") || stat(full, &st) < 0 || !S_ISREG(st.st_mode) || strlen(path) >= sizeof files[0].path)
        return NULL;
    struct file *f = NULL;
    for (size_t i = 0; i < n_files; i++)
        if (strcmp(files[i].path, path) == 0)
            f = &files[i];
    if (!f && n_files == FILES_MAX)
        return NULL;
    if (!f) {
        f = &files[n_files++];
        *f = (struct file){.size = 0};
        (void)snprintf(f->path, sizeof f->path, "%s", path);
    }
    uint64_t ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    if (f->mtime_ns != ns || f->size != (uint64_t)st.st_size) {
        struct err err;
        f->mtime_ns = ns;
        f->size = (uint64_t)st.st_size;
        if (os_digest_file(AT_FDCWD, full, f->sha256, NULL, &err) < 0)
            die(err.text);
        struct buf text = BUF_INIT(LFS_MIN);
        struct os_digest *d = os_digest_new_git(f->size);
        if (f->size < LFS_MIN && (os_read_file(AT_FDCWD, full, &text, NULL) < 0 || os_digest_add(d, text.ptr, text.len) < 0 || os_digest_hex(d, f->sha1) < 0))
            die("sha1");
        os_digest_free(d);
        buf_release(&text);
        if (f->size >= LFS_MIN) /* what git has is the pointer's */
            (void)snprintf(f->sha1, sizeof f->sha1, "%.40s", f->sha256 + 20);
    }
    return f;
}

struct listing {
    char names[FILES_MAX][512];
    size_t n;
};

static int list_one(void *ctx, const struct os_entry *e, struct err *err)
{
    struct listing *l = ctx;
    (void)err;
    if (S_ISREG(e->mode) && l->n < FILES_MAX && e->path[0] != '.')
        (void)snprintf(l->names[l->n++], sizeof l->names[0], "%s", e->path);
    return 0;
}

static bool list_repo(const char *repo, struct listing *l)
{
    char full[1024];
    struct err err;
    (void)snprintf(full, sizeof full, "%s/%s", root, repo);
    l->n = 0;
    int fd = strstr(repo, "..") ? -1 : open(full, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    int r = os_walk(fd, list_one, l, &err);
    close(fd);
    return r == 0;
}

/* Names what the repository holds at this moment. */
static void commit_of(const char *repo, char ret[41])
{
    static struct listing l;
    char hex[OS_SHA256_HEX];
    struct os_digest *d = os_digest_new();
    if (!list_repo(repo, &l))
        l.n = 0;
    for (size_t i = 0; i < l.n; i++) {
        char path[1100];
        (void)snprintf(path, sizeof path, "%s/%s", repo, l.names[i]);
        struct file *f = file_at(path);
        if (f && (os_digest_add(d, path, strlen(path)) < 0 || os_digest_add(d, f->sha256, 64) < 0))
            die("sha256");
    }
    if (os_digest_hex(d, hex) < 0)
        die("sha256");
    os_digest_free(d);
    (void)snprintf(ret, 41, "%.40s", hex);
}

/* ---- talking ------------------------------------------------------------------------------------------------------------ */

struct peer {
    int fd;
    bool cdn, over;
    char method[8], target[2048], range[64], if_range[128], authorization[256];
};

static bool send_all(struct peer *p, const void *data, size_t n)
{
    const char *at = data;
    while (n) {
        ssize_t k = send(p->fd, at, n, MSG_NOSIGNAL);
        if (k <= 0) {
            p->over = true;
            return false;
        }
        at += k;
        n -= (size_t)k;
    }
    return true;
}

static void answer(struct peer *p, const char *status, const char *fields, const char *body)
{
    char head[4096];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n", status, strlen(body), fields);
    if (send_all(p, head, (size_t)n))
        (void)send_all(p, body, strlen(body));
}

/* Until the other side has gone. */
static void hang(struct peer *p)
{
    struct pollfd pfd = {.fd = p->fd, .events = POLLRDHUP};
    (void)poll(&pfd, 1, 60000);
    p->over = true;
}

static void cut(struct peer *p)
{
    const struct linger now = {1, 0};
    (void)setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    p->over = true;
}

/* ---- content ---------------------------------------------------------------------------------------------------------------- */

static bool is(const char *fault, const char *kind)
{
    return strcmp(fault, kind) == 0;
}

/* The next of --every, when it is due. Under lock. */
static void take_due(char out[16])
{
    next_fault = total + every;
    (void)snprintf(out, 16, "%s", kinds[next_kind++ % n_kinds]);
    faults++;
}

/* The fault that this answer is to have; "" none. Under lock. */
static void choose_fault(char out[16], bool large)
{
    out[0] = '\0';
    if (n_pending) {
        n_pending--;
        faults++;
        (void)snprintf(out, 16, "%s", pending);
    } else if (every && large && total >= next_fault) {
        take_due(out);
    }
}

/* One that may begin in the middle of an answer, where the bytes have been counted; "" none. */
static void choose_here(char out[16])
{
    out[0] = '\0';
    pthread_mutex_lock(&lock);
    const char *next = n_kinds ? kinds[next_kind % n_kinds] : "";
    if (every && total >= next_fault && (is(next, "reset") || is(next, "stall") || is(next, "corrupt") || is(next, "short")))
        take_due(out);
    pthread_mutex_unlock(&lock);
}

/* Faults that have no content. */
static bool answer_fault(struct peer *p, const char *fault)
{
    if (is(fault, "expire")) {
        pthread_mutex_lock(&lock);
        generation++;
        pthread_mutex_unlock(&lock);
        answer(p, "403 Forbidden", "Content-Type: application/xml\r\n", "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>");
    } else if (is(fault, "429"))
        answer(p, "429 Too Many Requests", "Retry-After: 1\r\nRateLimit: \"resolvers\";r=0;t=1\r\n", "slow down");
    else if (is(fault, "503"))
        answer(p, "503 Service Unavailable", "", "later");
    else if (is(fault, "html"))
        answer(p, "200 OK", "Content-Type: text/html; charset=utf-8\r\n", "<!DOCTYPE html><html><body>Log in</body></html>");
    else if (is(fault, "notfound"))
        answer(p, "404 Not Found", "X-Error-Code: EntryNotFound\r\n", "Entry not found");
    else if (is(fault, "downgrade"))
        answer(p, "302 Found", "Location: ftp://127.0.0.2/file\r\n", "");
    else if (is(fault, "loop")) {
        char fields[256];
        (void)snprintf(fields, sizeof fields, "Location: ?X-Amz-Signature=secret-%" PRIu64 "\r\n", generation);
        answer(p, "302 Found", fields, "");
    } else
        return false;
    return true;
}

static void count_sent(struct file *f, uint64_t n)
{
    pthread_mutex_lock(&lock);
    f->sent += n;
    total += n;
    pthread_mutex_unlock(&lock);
}

/* Not what it was the last times. */
static uint64_t next_noise(void)
{
    static uint64_t n;
    pthread_mutex_lock(&lock);
    uint64_t noise = n = n * 6364136223846793005u + 1442695040888963407u;
    pthread_mutex_unlock(&lock);
    return noise >> 24;
}

static void send_body(struct peer *p, struct file *f, int fd, uint64_t from, uint64_t n, const char *fault)
{
    char piece[PIECE];
    char here[16];
    uint64_t half = n / 2, done = 0, pace = is(fault, "slow") ? 200000 : rate;
    while (done < n && !p->over) {
        if (!*fault) {
            choose_here(here);
            if (*here) {
                fault = here;
                half = done;
            }
        }
        uint64_t want = n - done < PIECE ? n - done : PIECE;
        ssize_t k = pread(fd, piece, (size_t)want, (off_t)(from + done));
        if (k <= 0)
            break;
        bool middle = done <= half && half < done + (uint64_t)k;
        if (middle && is(fault, "corrupt"))
            piece[next_noise() % (uint64_t)k] ^= (char)(1 + next_noise() % 255);
        if (is(fault, "noise"))
            piece[0] = (char)next_noise(), piece[1] = (char)next_noise();
        if (middle && (is(fault, "reset") || is(fault, "short"))) {
            if (is(fault, "reset"))
                cut(p);
            p->over = true;
            return;
        }
        if (middle && is(fault, "stall")) {
            hang(p);
            return;
        }
        if (!send_all(p, piece, (size_t)k))
            return;
        count_sent(f, (uint64_t)k);
        done += (uint64_t)k;
        if (fault == here)
            fault = "";
        if (pace) {
            struct timespec t = {.tv_nsec = 0};
            uint64_t us = (uint64_t)k * 1000000 / pace;
            t.tv_sec = (time_t)(us / 1000000);
            t.tv_nsec = (long)(us % 1000000) * 1000;
            (void)nanosleep(&t, NULL);
        }
    }
    if (is(fault, "long"))
        (void)send_all(p, "too much", 8);
    if (done < n || is(fault, "wronglength"))
        p->over = true;
}

static bool parse_range(const char *text, uint64_t size, uint64_t *from, uint64_t *to)
{
    unsigned long long a = 0, b = UINT64_MAX;
    *from = 0;
    *to = size - 1;
    if (!*text || sscanf(text, "bytes=%llu-%llu", &a, &b) < 1)
        return false;
    *from = a;
    *to = b < size ? b : size - 1;
    return true;
}

static void send_file(struct peer *p, const char *path)
{
    char full[1024], fault[16], head[1024], etag[80];
    uint64_t from, to;
    pthread_mutex_lock(&lock);
    struct file *f = file_at(path);
    if (f)
        choose_fault(fault, f->size >= LFS_MIN);
    uint64_t size = f ? f->size : 0;
    if (f)
        (void)snprintf(etag, sizeof etag, "\"%s\"", f->sha256);
    pthread_mutex_unlock(&lock);
    if (!f) {
        answer(p, "404 Not Found", "X-Error-Code: EntryNotFound\r\n", "Entry not found");
        return;
    }
    if (answer_fault(p, fault))
        return;
    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    bool part = parse_range(p->range, size, &from, &to) && !is(fault, "norange") && (!p->if_range[0] || strcmp(p->if_range, etag) == 0);
    if (!part)
        from = 0, to = size - 1;
    if (part && from >= size) {
        (void)snprintf(head, sizeof head, "Content-Range: bytes */%" PRIu64 "\r\n", size);
        answer(p, "416 Range Not Satisfiable", head, "");
        close(fd);
        return;
    }
    uint64_t n = size ? to - from + 1 : 0, said = is(fault, "long") ? n + 8 : is(fault, "wronglength") ? n / 2 : n;
    int len = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %" PRIu64 "\r\nContent-Type: application/octet-stream\r\nETag: %s\r\n%s", part ? "206 Partial Content" : "200 OK", said, etag,
                       is(fault, "gzip") ? "Content-Encoding: gzip\r\n" : "");
    if (part)
        len += snprintf(head + len, sizeof head - (size_t)len, "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n", from + (is(fault, "otherrange") ? 1 : 0), to, size);
    len += snprintf(head + len, sizeof head - (size_t)len, "\r\n");
    if (send_all(p, head, (size_t)len))
        send_body(p, f, fd, from, n, fault);
    close(fd);
}

/* ---- the hub ------------------------------------------------------------------------------------------------------------------ */

static bool has(const char *repo, const char *name)
{
    char full[1024];
    (void)snprintf(full, sizeof full, "%s/%s/%s", root, repo, name);
    return access(full, F_OK) == 0;
}

/* Answers for the repository when it may not be read. */
static bool refused(struct peer *p, const char *repo)
{
    char bearer[300];
    (void)snprintf(bearer, sizeof bearer, "Bearer %s", token ? token : "");
    bool known = token && strcmp(p->authorization, bearer) == 0;
    static struct listing l;
    pthread_mutex_lock(&lock);
    bool there = list_repo(repo, &l);
    pthread_mutex_unlock(&lock);
    if (has(repo, ".gated") && known)
        answer(p, "403 Forbidden", "X-Error-Code: GatedRepo\r\nX-Error-Message: Access to this repository is restricted\r\n", "restricted");
    else if (p->authorization[0] && !known)
        answer(p, "401 Unauthorized", "X-Error-Message: Invalid credentials in Authorization header\r\n", "no");
    else if ((has(repo, ".private") || has(repo, ".gated") || !there) && !known)
        answer(p, "401 Unauthorized", "X-Error-Code: RepoNotFound\r\nX-Error-Message: Invalid username or password.\r\n", "no");
    else if (!there)
        answer(p, "404 Not Found", "X-Error-Code: RepoNotFound\r\n", "no");
    else
        return false;
    return true;
}

static bool revision_ok(struct peer *p, const char *revision)
{
    if (strcmp(revision, "main") == 0 || (strlen(revision) == 40 && strspn(revision, "0123456789abcdef") == 40))
        return true;
    answer(p, "404 Not Found", "X-Error-Code: RevisionNotFound\r\n", "no");
    return false;
}

static void send_tree(struct peer *p, const char *repo, size_t cursor)
{
    static struct listing l;
    struct buf out = BUF_INIT(1u << 20), fields = BUF_INIT(4096);
    pthread_mutex_lock(&lock);
    (void)list_repo(repo, &l);
    buf_add_c(&out, "[{\"type\":\"directory\",\"oid\":\"0000000000000000000000000000000000000000\",\"size\":0,\"path\":\"folder\"}");
    size_t i = cursor;
    for (; i < l.n && i < cursor + page; i++) {
        char path[1100];
        (void)snprintf(path, sizeof path, "%s/%s", repo, l.names[i]);
        struct file *f = file_at(path);
        if (!f)
            continue;
        uint64_t size = has(repo, ".huge") ? UINT64_C(1) << 61 : f->size;
        buf_addf(&out, ",{\"type\":\"file\",\"oid\":\"%s\",\"size\":%" PRIu64 ",\"path\":\"%s\"", f->sha1, size, has(repo, ".escape") ? "../../escape" : l.names[i]);
        if (f->size >= LFS_MIN)
            buf_addf(&out, ",\"lfs\":{\"oid\":\"%s\",\"size\":%" PRIu64 ",\"pointerSize\":134}", f->sha256, size);
        buf_add_char(&out, '}');
    }
    buf_add_char(&out, ']');
    if (i < l.n)
        buf_addf(&fields, "Link: <http://127.0.0.1:%u/api/models/%s/tree/main?recursive=true&cursor=%zu>; rel=\"next\"\r\n", ports[0], repo, i);
    pthread_mutex_unlock(&lock);
    buf_add_c(&fields, "Content-Type: application/json\r\n");
    answer(p, "200 OK", fields.ptr, out.ptr);
    buf_release(&out);
    buf_release(&fields);
}

static void serve_api(struct peer *p, char *rest, const char *query)
{
    char repo[256], commit[41], body[128];
    char *what = strstr(rest, "/revision/"), *tree = strstr(rest, "/tree/");
    char *at = what ? what : tree;
    if (!at || at - rest >= (ptrdiff_t)sizeof repo) {
        answer(p, "404 Not Found", "", "no");
        return;
    }
    (void)snprintf(repo, sizeof repo, "%.*s", (int)(at - rest), rest);
    if (refused(p, repo) || !revision_ok(p, strrchr(rest, '/') + 1))
        return;
    if (what) {
        pthread_mutex_lock(&lock);
        commit_of(repo, commit);
        pthread_mutex_unlock(&lock);
        (void)snprintf(body, sizeof body, "{\"id\":\"%.30s\",\"sha\":\"%s\"}", repo, commit);
        answer(p, "200 OK", "Content-Type: application/json\r\n", body);
        return;
    }
    unsigned long cursor = 0;
    const char *c = strstr(query, "cursor=");
    if (c)
        (void)sscanf(c, "cursor=%lu", &cursor);
    send_tree(p, repo, cursor);
}

static void serve_resolve(struct peer *p, char *target, char *at)
{
    char path[1024], fields[2048];
    *at = '\0';
    char *revision = at + sizeof "/resolve/" - 1, *name = strchr(revision, '/');
    if (!name) {
        answer(p, "404 Not Found", "", "no");
        return;
    }
    *name++ = '\0';
    if (refused(p, target) || !revision_ok(p, revision))
        return;
    (void)snprintf(path, sizeof path, "%.500s/%.500s", target, name);
    pthread_mutex_lock(&lock);
    struct file *f = file_at(path);
    bool large = f && f->size >= LFS_MIN;
    if (large)
        (void)snprintf(fields, sizeof fields, "Location: http://127.0.0.2:%u/%s?X-Amz-Signature=secret-%" PRIu64 "\r\nX-Linked-Size: %" PRIu64 "\r\nX-Linked-Etag: \"%s\"\r\n", ports[1], path, generation, f->size, f->sha256);
    pthread_mutex_unlock(&lock);
    if (large)
        answer(p, "302 Found", fields, "Found. Redirecting");
    else
        send_file(p, path);
}

static void serve_control(struct peer *p, const char *target)
{
    struct buf out = BUF_INIT(1u << 20);
    unsigned long long n = 1;
    pthread_mutex_lock(&lock);
    if (strncmp(target, "/_fault?kind=", 13) == 0) {
        (void)sscanf(target, "/_fault?kind=%15[a-z0-9]&n=%llu", pending, &n);
        n_pending = n;
    } else if (strcmp(target, "/_zero") == 0) {
        requests = total = leaks = faults = next_fault = 0;
        for (size_t i = 0; i < n_files; i++)
            files[i].sent = 0;
    } else {
        buf_addf(&out, "requests %" PRIu64 "\nbytes %" PRIu64 "\nleaks %" PRIu64 "\nfaults %" PRIu64 "\n", requests, total, leaks, faults);
        for (size_t i = 0; i < n_files; i++)
            buf_addf(&out, "bytes:%s %" PRIu64 "\n", files[i].path, files[i].sent);
    }
    pthread_mutex_unlock(&lock);
    answer(p, "200 OK", "", out.ptr ? out.ptr : "");
    buf_release(&out);
}

static void serve(struct peer *p)
{
    char *query = strchr(p->target, '?'), *at;
    if (!p->cdn && strncmp(p->target, "/_", 2) == 0) {
        serve_control(p, p->target);
        return;
    }
    if (query)
        *query++ = '\0';
    pthread_mutex_lock(&lock);
    requests++;
    if (p->cdn && p->authorization[0])
        leaks++;
    char sig[64];
    (void)snprintf(sig, sizeof sig, "X-Amz-Signature=secret-%" PRIu64, generation);
    pthread_mutex_unlock(&lock);
    if (p->cdn && (!query || strcmp(query, sig) != 0))
        answer(p, "403 Forbidden", "Content-Type: application/xml\r\n", "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>");
    else if (p->cdn)
        send_file(p, p->target + 1);
    else if (strncmp(p->target, "/api/models/", 12) == 0)
        serve_api(p, p->target + 12, query ? query : "");
    else if ((at = strstr(p->target, "/resolve/")))
        serve_resolve(p, p->target + 1, at);
    else if (plain)
        send_file(p, p->target + 1);
    else
        answer(p, "404 Not Found", "", "no");
}

/* ---- connections ------------------------------------------------------------------------------------------------------------------ */

static void take_field(struct peer *p, const char *line)
{
    static const struct {
        const char *name;
        size_t off, size;
    } fields[] = {{"Range: ", offsetof(struct peer, range), 64}, {"If-Range: ", offsetof(struct peer, if_range), 128}, {"Authorization: ", offsetof(struct peer, authorization), 256}};
    for (size_t i = 0; i < BASE_COUNT(fields); i++)
        if (strncasecmp(line, fields[i].name, strlen(fields[i].name)) == 0)
            (void)snprintf((char *)p + fields[i].off, fields[i].size, "%s", line + strlen(fields[i].name));
}

/* One request's head; the requests of this hub's clients have no body. */
static bool read_request(struct peer *p)
{
    char head[HEAD_MAX];
    size_t n = 0;
    p->range[0] = p->if_range[0] = p->authorization[0] = '\0';
    while (n < 4 || memcmp(head + n - 4, "\r\n\r\n", 4) != 0) {
        if (n + 1 >= sizeof head || recv(p->fd, head + n, 1, 0) != 1)
            return false;
        n++;
    }
    head[n - 2] = '\0';
    if (sscanf(head, "%7s %2047s", p->method, p->target) != 2)
        return false;
    char *line = head;
    for (char *end; (end = strstr(line, "\r\n")); line = end + 2) {
        *end = '\0';
        take_field(p, line);
    }
    return true;
}

static void *connection(void *ctx)
{
    struct peer *p = ctx;
    const int one = 1, small = 65536;
    (void)setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(p->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small); /* what was sent is then nearly what was received */
    while (!p->over && read_request(p))
        serve(p);
    close(p->fd);
    free(p);
    return NULL;
}

struct listener {
    int fd;
    bool cdn;
};

static void *listener(void *ctx)
{
    const struct listener *l = ctx;
    for (;;) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
        struct peer *p = fd < 0 ? NULL : calloc(1, sizeof *p);
        pthread_t t;
        if (!p)
            continue;
        *p = (struct peer){.fd = fd, .cdn = l->cdn};
        if (pthread_create(&t, NULL, connection, p) == 0)
            (void)pthread_detach(t);
    }
    return NULL;
}

static int listen_on(const char *address, uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, address, &a.sin_addr) != 1 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 64) < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        die(address);
    *port = ntohs(a.sin_port);
    return fd;
}

static void read_kinds(char *text)
{
    for (char *save = NULL, *k = strtok_r(text, ",", &save); k && n_kinds < KINDS_MAX; k = strtok_r(NULL, ",", &save))
        (void)snprintf(kinds[n_kinds++], sizeof kinds[0], "%s", k);
}

int main(int argc, char **argv)
{
    static struct listener listeners[2];
    pthread_t t;
    char c;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (strcmp(argv[i], "--plain") == 0)
            plain = true;
        else if (strcmp(argv[i], "--page") == 0)
            page = strtoul(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--rate") == 0)
            rate = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--every") == 0 && i + 2 < argc)
            every = next_fault = strtoull(value, NULL, 10), read_kinds(argv[i + 2]), i += 2;
        else
            root = argv[i];
    }
    if (!root || (every && !n_kinds))
        return 2;
    token = getenv("FAKE_HUB_TOKEN");
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++)
        listeners[i] = (struct listener){listen_on(i ? "127.0.0.2" : "127.0.0.1", &ports[i]), i == 1};
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&t, NULL, listener, &listeners[i]) != 0)
            die("thread");
    }
    printf("%u %u\n", ports[0], ports[1]);
    (void)fflush(stdout);
    while (read(0, &c, 1) > 0)
        ;
    _exit(0); /* its threads still run */
}
