/* SPDX-License-Identifier: MIT
 *
 * apt with a state of its own: lists, cache, status and configuration all lie in one folder of the store, so that the machine's package database is neither read nor
 * changed and no rights are needed. The dpkg status is empty: the closure then holds the C library and its loader too. From the machine come only the mirror, how to
 * reach it (Acquire::http and the like: proxies), and whether it accepts a release file that has run out.
 *
 * The index is proven by apt with Debian's keyring; what it downloads is proven again by us against the index (debian.c), since apt takes a file
 * already in its cache for good when only the size is right.
 */
#include "store_int.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#define APT_MEMORY_MAX (16u << 20)
#define OUTPUT_MAX (8u << 20)   /* of --print-uris; a deb takes some 300 bytes */
#define ERROR_TAIL 400          /* bytes of apt's own words in an error */
#define QUICK_MS 120000         /* commands that only read */
#define UPDATE_MS 900000ull     /* 10 MB of index */
#define FETCH_MS 14400000ull    /* a CUDA closure on a slow line */
#define TICK_MS 200

/* ---- what apt says ------------------------------------------------------------------------------------------- */

/* The text between the quotes that s begins with; s then begins behind them. */
static bool take_quoted(struct str *s, struct str *ret)
{
    if (!s->len || s->ptr[0] != '\'')
        return false;
    struct str rest = {s->ptr + 1, s->len - 1};
    ptrdiff_t end = str_find_char(rest, '\'');
    if (end <= 0)
        return false;
    *ret = (struct str){rest.ptr, (size_t)end};
    *s = (struct str){rest.ptr + end + 1, rest.len - (size_t)end - 1};
    return true;
}

static int parse_uri_line(struct str line, struct arena *a, struct apt_deb *ret, struct err *err)
{
    struct str whole = line, url, hash;
    if (!take_quoted(&line, &url))
        return err_set(err, -EBADMSG, "apt wrote '" STR_FMT "', not an address and a file", STR_ARG(whole));
    line = str_trim(line);
    struct str file = str_split(&line, ' ');
    struct str size = str_split(&line, ' ');
    hash = str_trim(line);
    uint64_t bytes;
    if (!os_name_valid(file) || !str_ends(file, STR(".deb")) || file.ptr[0] == '-' || file.ptr[0] == '.' || str_to_u64(size, &bytes) < 0 ||
        bytes == 0 || bytes > APT_DEB_BYTES_MAX)
        return err_set(err, -EBADMSG, "apt wrote '" STR_FMT "', not an address, a file and a size", STR_ARG(whole));
    if (!str_starts(hash, STR("SHA256:")) || !manifest_is_sha256((struct str){hash.ptr + 7, hash.len - 7}))
        return err_set(err, -EBADMSG, "apt names no sha256 for '" STR_FMT "'", STR_ARG(file));
    ret->url = arena_dup(a, url);
    ret->file = arena_dup(a, file);
    ret->sha256 = arena_dup(a, (struct str){hash.ptr + 7, hash.len - 7});
    ret->bytes = bytes;
    return ret->url && ret->file && ret->sha256 ? 0 : err_nomem(err);
}

int apt_uris_parse(struct str text, struct arena *a, struct apt_list *ret, struct err *err)
{
    struct apt_list list = {0};
    size_t n = 0;
    for (struct str rest = text; rest.ptr;)
        if (str_starts(str_split(&rest, '\n'), STR("'")))
            n++;
    if (n > APT_DEBS_MAX)
        return err_set(err, -E2BIG, "apt names %zu packages; at most %d are taken", n, APT_DEBS_MAX);
    list.debs = arena_alloc(a, n ? n : 1, sizeof *list.debs);
    if (!list.debs)
        return err_nomem(err);
    for (struct str rest = text; rest.ptr;) {
        struct str line = str_split(&rest, '\n');
        if (!str_starts(line, STR("'")))
            continue;
        int r = parse_uri_line(line, a, &list.debs[list.n], err);
        if (r < 0)
            return r;
        list.bytes += list.debs[list.n++].bytes; /* at most APT_DEBS_MAX * APT_DEB_BYTES_MAX: fits */
    }
    *ret = list;
    return 0;
}

/* How well an address serves as Debian's mirror: 2 like a mirror of Debian itself, 0 not at all. */
static int mirror_rank(struct str base)
{
    if (!str_starts(base, STR("http://")) && !str_starts(base, STR("https://")))
        return 0;
    if (str_find(base, STR("security")) >= 0 || str_find(base, STR("ports")) >= 0)
        return 0;
    return str_ends(base, STR("/debian")) ? 2 : str_find(base, STR("/debian/")) >= 0 ? 1 : 0;
}

const char *apt_mirror_parse(struct str text, struct arena *a)
{
    struct str best = {0};
    int best_rank = 0;
    while (text.ptr) {
        struct str line = str_split(&text, '\n'), url;
        ptrdiff_t at;
        if (!take_quoted(&line, &url) || (at = str_find(url, STR("/dists/"))) <= 0)
            continue;
        struct str base = {url.ptr, (size_t)at};
        int rank = mirror_rank(base);
        if (rank > best_rank) {
            best = base;
            best_rank = rank;
        }
    }
    return best_rank ? arena_dup(a, best) : NULL;
}

/* ---- running it ------------------------------------------------------------------------------------------------- */

static const char *const unreachable[] = {
    "Temporary failure resolving", "Could not resolve", "Something wicked happened resolving", "Network is unreachable", "Connection refused",
    "Could not connect", "Cannot initiate the connection", "Unable to connect", "onnection timed out", "No route to host", "Connection failed",
};

/* The first line that says why there is no connection. */
static bool find_unreachable(struct str text, struct str *ret)
{
    while (text.ptr) {
        struct str line = str_trim(str_split(&text, '\n'));
        for (size_t i = 0; i < BASE_COUNT(unreachable); i++) {
            ptrdiff_t at = str_find(line, str_of(unreachable[i]));
            if (at >= 0) {
                *ret = (struct str){line.ptr + at, line.len - (size_t)at};
                if (str_ends(*ret, STR(")")) && str_find_char(*ret, '(') < 0)
                    ret->len--; /* "... - connect (111: Connection refused)" */
                return true;
            }
        }
    }
    return false;
}

/* Its error lines, or else its last line, in one line. */
static void last_words(struct str text, struct buf *out)
{
    struct str last = {0};
    for (struct str rest = text; rest.ptr;) {
        struct str line = str_trim(str_split(&rest, '\n'));
        if (line.len)
            last = line;
        if (!str_starts(line, STR("E: ")) || out->len > ERROR_TAIL)
            continue;
        if (out->len)
            buf_add_c(out, "; ");
        buf_add_printable(out, (struct str){line.ptr + 3, line.len - 3}, ERROR_TAIL);
    }
    if (!out->len)
        buf_add_printable(out, last, ERROR_TAIL);
}

static int apt_failed(const struct apt *apt, const char *step, struct str text, struct err *err)
{
    struct str why;
    base_autobuf struct buf words = BUF_INIT(8192);
    if (find_unreachable(text, &why)) {
        buf_add_printable(&words, why, 160);
        return err_set(err, -ENETUNREACH, "cannot reach the mirror '%s': %s", apt->mirror, words.ptr ? words.ptr : "");
    }
    last_words(text, &words);
    const char *said = words.ptr ? words.ptr : "no reason given";
    if (str_find(text, STR(" is expired")) >= 0 || str_find(text, STR("Valid-Until")) >= 0)
        return err_set(err, -ETIME, "%s: the mirror's release file has run out: %s; correct the clock, use another mirror, or accept it with 'berth runtime add --ignore-valid-until'",
                       step, said);
    if (str_find(text, STR("Unable to locate package")) >= 0)
        return err_set(err, -ENOENT, "%s: 'debian:%s' at '%s': %s", step, apt->in->want->source_arg, apt->mirror, said);
    return err_set(err, -EIO, "%s: apt-get failed: %s", step, said);
}

static struct os_spawn apt_spawn(const struct apt *apt, const char *const *argv)
{
    return (struct os_spawn){
        .argv = argv, .envp = apt->env, .use_path = true, .cwd = "/", .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1,
        .keep_fds = &apt->in->lockfd, .n_keep_fds = 1, .death_signal = SIGKILL, .new_group = true, .own_pids = os_own_pids_possible(),
    };
}

/* A command that only reads; what it wrote in out. */
static int run_quick(const struct apt *apt, const char *const *argv, const char *step, struct buf *out, struct err *err)
{
    base_autobuf struct buf errout = BUF_INIT(65536);
    struct os_spawn s = apt_spawn(apt, argv);
    int status, r = os_run(&s, QUICK_MS, out, &errout, &status, err);
    if (r == -ENOENT)
        return err_set(err, r, "'%s' is not here: a debian: source needs Debian's apt and dpkg; use a path: source", argv[0]);
    if (r < 0)
        return r;
    return status == 0 ? 0 : apt_failed(apt, step, buf_str(&errout), err);
}

/* Bytes of all files in a folder and in its "partial". */
static uint64_t folder_bytes(const char *path)
{
    uint64_t sum = 0;
    static const char *const parts[] = {"", "/partial"};
    for (size_t i = 0; i < BASE_COUNT(parts); i++) {
        char full[STORE_PATH_MAX];
        DIR *d = store_pathf(full, NULL, "%s%s", path, parts[i]) < 0 ? NULL : opendir(full);
        if (!d)
            continue;
        const struct dirent *e;
        while ((e = readdir(d))) {
            struct stat st;
            if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
                sum += (uint64_t)st.st_size;
        }
        closedir(d);
    }
    return sum;
}

/* Waits for a command's end, telling how much of total its folder holds. */
static int await(const struct apt *apt, struct os_proc *p, uint64_t limit_ms, const char *folder, uint64_t total, int *ret_status)
{
    uint64_t end_us = clk_system.mono_us(NULL) + limit_ms * 1000;
    for (;;) {
        struct pollfd pfd[2] = {{.fd = p->pidfd, .events = POLLIN}, {.fd = os_interrupt_fd(), .events = POLLIN}};
        if (poll(pfd, 2, TICK_MS) < 0 && errno != EINTR)
            return -errno;
        if (total) {
            uint64_t have = folder_bytes(folder);
            event_progress(apt->in->o->sink, apt->in->subject, "fetching", have < total ? have : total, total);
        }
        int r = os_proc_reap(p, ret_status);
        if (r != 0)
            return r < 0 ? r : 0;
        if (os_interrupted() || clk_system.mono_us(NULL) > end_us) {
            os_proc_kill_group(p);
            while (os_proc_reap(p, ret_status) == 0)
                (void)poll(pfd, 1, -1);
            return os_interrupted() ? -EINTR : -ETIMEDOUT;
        }
    }
}

/* A command that fetches; its words go to a file, whose end is shown when it fails. */
static int run_long(const struct apt *apt, const char *const *argv, const char *step, uint64_t limit_ms, const char *folder, uint64_t total,
                    struct err *err)
{
    char path[STORE_PATH_MAX];
    int r = store_pathf(path, err, "%s/log/out", apt->dir);
    if (r < 0)
        return r;
    os_autoclose int log = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log < 0)
        return err_sys(err, -errno, "cannot make '%s'", path);
    struct os_spawn s = apt_spawn(apt, argv);
    s.stdout_fd = s.stderr_fd = log;
    struct os_proc p = OS_PROC_NONE;
    r = os_spawn(&s, &p, err);
    if (r < 0)
        return r;
    int status = 0;
    r = await(apt, &p, limit_ms, folder, total, &status);
    os_proc_release(&p);
    if (r < 0)
        return err_sys(err, r, "%s: apt-get did not end", step);
    if (status == 0)
        return 0;
    base_autobuf struct buf text = BUF_INIT(OUTPUT_MAX);
    r = os_read_file(AT_FDCWD, path, &text, err);
    return r < 0 ? r : apt_failed(apt, step, buf_str(&text), err);
}

/* ---- its private state ----------------------------------------------------------------------------------------------- */

/* Settings of the machine's apt that decide whether and how the mirror is reached. */
static bool wanted_setting(struct str line)
{
    static const char *const prefixes[] = {"Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::ForceIP", "Acquire::Check-Valid-Until"};
    for (size_t i = 0; i < BASE_COUNT(prefixes); i++)
        if (str_starts(line, str_of(prefixes[i])))
            return str_ends(line, STR("\";"));
    return false;
}

static int write_text(const char *path, const struct buf *text, struct err *err)
{
    if (buf_status(text) < 0)
        return err_nomem(err);
    os_autoclose int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return err_sys(err, -errno, "cannot make '%s'", path);
    return os_write_all(fd, text->ptr, text->len, err);
}

static int write_conf(struct apt *apt, struct str machine, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(1u << 20);
    while (machine.ptr) {
        struct str line = str_trim(str_split(&machine, '\n'));
        if (wanted_setting(line)) {
            buf_add_str(&b, line);
            buf_add_char(&b, '\n');
        }
    }
    const char *d = apt->dir;
    buf_addf(&b, "Dir::Etc \"%s/etc\";\nDir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\nDir::Etc::sourcelist \"/dev/null\";\n", d);
    buf_addf(&b, "Dir::Etc::sourceparts \"%s/etc/\";\nDir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n", d);
    buf_addf(&b, "Dir::State \"%s\";\nDir::State::lists \"%s/lists\";\nDir::State::status \"%s/status\";\nDir::Cache \"%s/cache\";\nDir::Log \"%s/log\";\n", d,
             d, d, d, d);
    buf_addf(&b, "APT::Architecture \"%s\";\nAPT::Architectures {\"%s\";};\nAPT::Install-Recommends \"false\";\nAPT::Sandbox::User \"\";\n", apt->arch, apt->arch);
    buf_addf(&b, "Acquire::Languages \"none\";\nAPT::Update::Error-Mode \"any\";\nAcquire::ForceHash \"SHA256\";\n");
    if (apt->in->o->ignore_valid_until)
        buf_addf(&b, "Acquire::Check-Valid-Until \"false\";\n");
    return write_text(apt->conf, &b, err);
}

static int write_source(const struct apt *apt, struct err *err)
{
    static const char *const keyrings[] = {"/usr/share/keyrings/debian-archive-keyring.pgp", "/usr/share/keyrings/debian-archive-keyring.gpg"};
    const char *keyring = NULL;
    for (size_t i = 0; i < BASE_COUNT(keyrings) && !keyring; i++)
        if (access(keyrings[i], R_OK) == 0)
            keyring = keyrings[i];
    if (!keyring)
        return err_set(err, -ENOENT, "Debian's keyring '%s' is not here: install the package debian-archive-keyring", keyrings[1]);
    base_autobuf struct buf b = BUF_INIT(65536);
    buf_addf(&b, "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n", apt->mirror, apt->in->want->source_arg, keyring);
    char path[STORE_PATH_MAX];
    int r = store_pathf(path, err, "%s/etc/berth.sources", apt->dir);
    return r < 0 ? r : write_text(path, &b, err);
}

static int make_folders(const struct apt *apt, struct err *err)
{
    static const char *const folders[] = {"etc", "lists/partial", "log", "cache/archives/partial", "empty/partial", "tmp"};
    char path[STORE_PATH_MAX];
    for (size_t i = 0; i < BASE_COUNT(folders); i++) {
        int r = store_pathf(path, err, "%s/%s", apt->dir, folders[i]);
        if (r == 0)
            r = os_make_dirs(path, 0755, err);
        if (r < 0)
            return r;
    }
    struct buf empty = BUF_INIT(1);
    int r = store_pathf(path, err, "%s/status", apt->dir);
    return r < 0 ? r : write_text(path, &empty, err);
}

/* A clean environment with the proxies of ours. conf NULL: the machine's own apt. */
static int make_env(struct apt *apt, const char *conf, struct err *err)
{
    static const char *const kept[] = {"http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "HOME"};
    const char **env = arena_alloc(apt->arena, BASE_COUNT(kept) + 6, sizeof *env);
    if (!env)
        return err_nomem(err);
    size_t n = 0;
    env[n++] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    env[n++] = "LC_ALL=C";
    env[n++] = "DEBIAN_FRONTEND=noninteractive";
    for (size_t i = 0; i < BASE_COUNT(kept); i++) {
        const char *v = getenv(kept[i]);
        if (v && !(env[n++] = arena_printf(apt->arena, "%s=%s", kept[i], v)))
            return err_nomem(err);
    }
    if (conf && !(env[n++] = arena_printf(apt->arena, "APT_CONFIG=%s", conf)))
        return err_nomem(err);
    /* What a killed apt leaves is cleared away with the rest. */
    if (conf && !(env[n++] = arena_printf(apt->arena, "TMPDIR=%s/tmp", apt->dir)))
        return err_nomem(err);
    env[n] = NULL;
    apt->env = env;
    return 0;
}

static int find_arch(struct apt *apt, struct err *err)
{
    static const char *const argv[] = {"dpkg", "--print-architecture", NULL};
    base_autobuf struct buf out = BUF_INIT(4096);
    int r = run_quick(apt, argv, "reading the architecture", &out, err);
    if (r < 0)
        return r;
    struct str arch = str_trim(buf_str(&out));
    if (!fleet_name_valid(arch))
        return err_set(err, -EBADMSG, "dpkg names the architecture '" STR_FMT "'", STR_ARG(arch));
    apt->arch = arena_dup(apt->arena, arch);
    return apt->arch ? 0 : err_nomem(err);
}

static int find_mirror(struct apt *apt, struct err *err)
{
    const char *given = apt->in->o->mirror;
    if (given) {
        struct str m = str_of(given);
        while (m.len && m.ptr[m.len - 1] == '/')
            m.len--;
        if (!str_starts(m, STR("http://")) && !str_starts(m, STR("https://")))
            return err_set(err, -EINVAL, "mirror '%s' is no http address", given);
        apt->mirror = arena_dup(apt->arena, m);
        return apt->mirror ? 0 : err_nomem(err);
    }
    /* Sources that apt cannot read give no mirror. */
    static const char *const argv[] = {"apt-get", "update", "--print-uris", NULL};
    base_autobuf struct buf out = BUF_INIT(OUTPUT_MAX);
    int r = run_quick(apt, argv, "reading the machine's mirrors", &out, err);
    if (r == -ENOENT || r == -ENOMEM)
        return r;
    const char *found = r < 0 ? NULL : apt_mirror_parse(buf_str(&out), apt->arena);
    if (found)
        apt->mirror = found;
    return found ? 0 : err_set(err, -EDESTADDRREQ, "this machine's apt sources name no Debian mirror: name one with 'berth runtime add --mirror URL'");
}

/* apt's configuration and sources have no way to quote these. */
static int check_texts(const struct apt *apt, struct err *err)
{
    if (strpbrk(apt->dir, "\"\\\n"))
        return err_set(err, -EINVAL, "apt cannot work in '%s': set BERTH_STATE to a folder without quotes and backslashes", apt->dir);
    if (strpbrk(apt->mirror, " \n\r\t\"'"))
        return err_set(err, -EINVAL, "mirror '%s' is no http address", apt->mirror);
    if (!fleet_name_valid(str_of(apt->in->want->source_arg)))
        return err_set(err, -EINVAL, "'%s' is no name of a Debian suite", apt->in->want->source_arg);
    for (size_t i = 0; i < apt->in->want->n_packages; i++) {
        const char *p = apt->in->want->packages[i];
        if (!*p || *p == '-' || p[strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789+-.:")])
            return err_set(err, -EINVAL, "'%s' is no name of a Debian package", p);
    }
    return 0;
}

int apt_open(struct apt *apt, const struct install *in, struct err *err)
{
    *apt = (struct apt){.in = in, .arena = arena_new(APT_MEMORY_MAX), .mirror = ""};
    if (!apt->arena)
        return err_nomem(err);
    apt->dir = arena_printf(apt->arena, "%s/apt", in->stage);
    apt->conf = arena_printf(apt->arena, "%s/apt/conf", in->stage);
    if (!apt->dir || !apt->conf)
        return err_nomem(err);
    int r = make_env(apt, NULL, err);
    if (r == 0)
        r = find_arch(apt, err);
    return r;
}

void apt_close(struct apt *apt)
{
    apt->arena = arena_free(apt->arena);
}

int apt_update(struct apt *apt, struct err *err)
{
    static const char *const dump[] = {"apt-config", "dump", NULL};
    static const char *const update[] = {"apt-get", "-q", "update", NULL};
    base_autobuf struct buf machine = BUF_INIT(OUTPUT_MAX);
    int r = find_mirror(apt, err);
    if (r == 0)
        r = check_texts(apt, err);
    if (r == 0)
        r = run_quick(apt, dump, "reading apt's settings", &machine, err);
    if (r == 0)
        r = make_folders(apt, err);
    if (r == 0)
        r = write_conf(apt, buf_str(&machine), err);
    if (r == 0)
        r = write_source(apt, err);
    if (r == 0)
        r = make_env(apt, apt->conf, err);
    if (r < 0)
        return r;
    event_say(apt->in->o->sink, EVENT_INFO, apt->in->subject, "reading the package list of debian:%s from %s", apt->in->want->source_arg, apt->mirror);
    return run_long(apt, update, "reading the package list", UPDATE_MS, NULL, 0, err);
}

/* apt-get, its options, the packages, NULL. */
static const char *const *install_argv(struct apt *apt, const char *const *options, size_t n_options)
{
    const struct fleet_runtime *w = apt->in->want;
    const char **argv = arena_alloc(apt->arena, n_options + w->n_packages + 1, sizeof *argv);
    if (!argv)
        return NULL;
    for (size_t i = 0; i < n_options; i++)
        argv[i] = options[i];
    for (size_t i = 0; i < w->n_packages; i++)
        argv[n_options + i] = w->packages[i];
    return argv;
}

int apt_resolve(struct apt *apt, struct apt_list *ret, struct err *err)
{
    /* An empty cache: what is cached would be left out of the list. */
    const char *cache = arena_printf(apt->arena, "Dir::Cache::archives=%s/empty/", apt->dir);
    const char *const options[] = {"apt-get", "-y", "-o", cache, "install", "--print-uris"};
    const char *const *argv = cache ? install_argv(apt, options, BASE_COUNT(options)) : NULL;
    if (!argv)
        return err_nomem(err);
    base_autobuf struct buf out = BUF_INIT(OUTPUT_MAX);
    int r = run_quick(apt, argv, "resolving the packages", &out, err);
    if (r == 0)
        r = apt_uris_parse(buf_str(&out), apt->arena, ret, err);
    if (r == 0 && ret->n == 0)
        r = err_set(err, -ENOENT, "resolving the packages: apt-get names none");
    return r;
}

const char *apt_cache_dir(struct apt *apt)
{
    return arena_printf(apt->arena, "%s/cache/archives", apt->dir);
}

int apt_fetch(struct apt *apt, uint64_t total, struct err *err)
{
    static const char *const options[] = {"apt-get", "-q", "-y", "--download-only", "install"};
    const char *const *argv = install_argv(apt, options, BASE_COUNT(options));
    const char *folder = apt_cache_dir(apt);
    if (!argv || !folder)
        return err_nomem(err);
    return run_long(apt, argv, "fetching the packages", FETCH_MS, folder, total, err);
}
