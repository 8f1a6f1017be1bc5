/* SPDX-License-Identifier: MIT
 *
 * Keys of clients, as a file has them: a line for each, of which the secret is not in it.
 *
 *   NAME sha256:HEX [models=A,B] [concurrency=N] [rate=N]      rate: requests a minute; '#' begins a comment line
 *
 * A key is 256 random bits, so that one round of SHA-256 is all that keeps it: nobody finds it by trying. Looking one up compares with every line, in a time that does not depend on which it is.
 */
#include "keys_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <os/os.h>

#define KEYS_ARENA_MAX ((size_t)16 << 20)

struct proxy_keys {
    atomic_uint refs;
    struct arena *arena;
    struct proxy_key *list;
    size_t n, cap;
};

/* ---- a line -------------------------------------------------------------------------------------------------- */

struct place {
    const char *path;
    unsigned line;
    struct err *err;
};

static int bad(const struct place *at, const char *fmt, ...) BASE_PRINTF(2, 3);
static int bad(const struct place *at, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(at->err, -EINVAL, "%s:%u: %s", at->path, at->line, text);
}

static bool read_hash(struct str s, unsigned char ret[PROXY_KEY_HASH])
{
    static const struct str kind = {"sha256:", 7};
    return str_starts(s, kind) && os_unhex((struct str){s.ptr + kind.len, s.len - kind.len}, ret, PROXY_KEY_HASH);
}

static bool is_model_name(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.ptr[i] <= 0x20 || (unsigned char)s.ptr[i] >= 0x7f)
            return false;
    return s.len > 0 && s.len <= FLEET_MODEL_NAME_MAX;
}

static int read_models(struct proxy_keys *k, const struct place *at, struct str list, struct proxy_key *key)
{
    size_t cap = 0;
    const char **models = NULL;
    while (list.ptr) {
        struct str name = str_split(&list, ',');
        if (!is_model_name(name))
            return bad(at, "'models' must be names with commas between them");
        if (key->n_models == PROXY_KEY_MODELS_MAX)
            return bad(at, "'models' has more than %d names", PROXY_KEY_MODELS_MAX);
        const char **more = arena_grow(k->arena, models, key->n_models + 1, &cap, sizeof *models);
        if (!more || !(more[key->n_models] = arena_dup(k->arena, name)))
            return err_nomem(at->err);
        models = more;
        key->n_models++;
    }
    key->models = models;
    return 0;
}

static int read_option(struct proxy_keys *k, const struct place *at, struct str word, struct proxy_key *key)
{
    struct str value = word, name = str_split(&value, '=');
    uint64_t n = 0;
    bool concurrency = str_eq_c(name, "concurrency"), rate = str_eq_c(name, "rate");
    if (str_eq_c(name, "models") && value.ptr)
        return key->n_models ? bad(at, "'models' is there twice") : read_models(k, at, value, key);
    if (!concurrency && !rate)
        return bad(at, "after the hash come models=A,B, concurrency=N and rate=N only");
    if (!value.ptr || str_to_u64(value, &n) < 0 || n == 0 || n > PROXY_KEY_LIMIT_MAX)
        return bad(at, "'%s' must be a number from 1 to %d", concurrency ? "concurrency" : "rate", PROXY_KEY_LIMIT_MAX);
    uint32_t *to = concurrency ? &key->concurrency : &key->rate;
    if (*to)
        return bad(at, "'%s' is there twice", concurrency ? "concurrency" : "rate");
    *to = (uint32_t)n;
    return 0;
}

static struct str next_word(struct str *line)
{
    *line = str_trim(*line);
    size_t n = 0;
    while (n < line->len && line->ptr[n] != ' ' && line->ptr[n] != '\t')
        n++;
    struct str word = {line->ptr, n};
    *line = (struct str){line->ptr + n, line->len - n};
    return word;
}

static int read_line(struct proxy_keys *k, const struct place *at, struct str line)
{
    struct proxy_key key = {0};
    struct str name = next_word(&line), hash = next_word(&line);
    if (!fleet_name_valid(name))
        return bad(at, "a line begins with the key's name: lower-case letters, digits, '-', '_' and '.'");
    if (!read_hash(hash, key.hash))
        return bad(at, "after the name comes sha256: and 64 hexadecimal digits in lower case, as 'berth key add NAME' writes it");
    int rc = 0;
    for (struct str word = next_word(&line); rc == 0 && word.len; word = next_word(&line))
        rc = read_option(k, at, word, &key);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < k->n; i++)
        if (str_eq_c(name, k->list[i].name) || memcmp(k->list[i].hash, key.hash, sizeof key.hash) == 0)
            return bad(at, "it has the name or the hash of another line");
    if (k->n == PROXY_KEYS_MAX)
        return bad(at, "there are more than %d keys", PROXY_KEYS_MAX);
    struct proxy_key *list = arena_grow(k->arena, k->list, k->n + 1, &k->cap, sizeof *list);
    key.name = arena_dup(k->arena, name);
    if (!list || !key.name)
        return err_nomem(at->err);
    k->list = list;
    k->list[k->n++] = key;
    return 0;
}

/* ---- the file ------------------------------------------------------------------------------------------------- */

int proxy_keys_parse(struct str text, const char *path, struct proxy_keys **ret, struct err *err)
{
    struct proxy_keys *k = calloc(1, sizeof *k);
    struct place at = {.path = path, .err = err};
    if (!k || !(k->arena = arena_new(KEYS_ARENA_MAX))) {
        free(k);
        return err_nomem(err);
    }
    k->refs = 1;
    int rc = 0;
    while (rc == 0 && text.ptr) {
        struct str line = str_trim(str_split(&text, '\n'));
        at.line++;
        if (line.len && line.ptr[0] != '#')
            rc = read_line(k, &at, line);
    }
    if (rc < 0) {
        proxy_keys_unref(k);
        return rc;
    }
    *ret = k;
    return 0;
}

struct proxy_keys *proxy_keys_ref(struct proxy_keys *k)
{
    atomic_fetch_add_explicit(&k->refs, 1, memory_order_relaxed);
    return k;
}

struct proxy_keys *proxy_keys_unref(struct proxy_keys *k)
{
    if (k && atomic_fetch_sub_explicit(&k->refs, 1, memory_order_acq_rel) == 1) {
        k->arena = arena_free(k->arena);
        free(k);
    }
    return NULL;
}

size_t proxy_keys_count(const struct proxy_keys *k)
{
    return k->n;
}

const struct proxy_key *proxy_keys_at(const struct proxy_keys *k, size_t i)
{
    return i < k->n ? &k->list[i] : NULL;
}

int proxy_keys_read(const char *path, struct buf *out, struct err *err)
{
    struct stat st;
    os_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return err_set(err, -ENOENT, "keys file '%s' does not exist; 'berth key add NAME' makes it", path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, -errno, "cannot read keys file '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "keys file '%s' is no regular file", path);
    if (st.st_mode & 077)
        return err_set(err, -EACCES, "keys file '%s' can be read or written by others (mode %03o); chmod 600 '%s'", path, (unsigned)(st.st_mode & 0777), path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(err, -EACCES, "keys file '%s' belongs to somebody else (uid %u); chown it", path, (unsigned)st.st_uid);
    int rc = os_read_all(fd, out, err);
    return rc < 0 ? err_prefix(err, "keys file '%s'", path) : 0;
}

/* ---- secrets ---------------------------------------------------------------------------------------------------- */

int proxy_key_hash(struct str secret, unsigned char ret[PROXY_KEY_HASH])
{
    char hex[OS_SHA256_HEX], line[7 + OS_SHA256_HEX];
    struct os_digest *d = os_digest_new();
    int rc = d ? os_digest_add(d, secret.ptr, secret.len) : -ENOMEM;
    if (rc == 0)
        rc = os_digest_hex(d, hex);
    os_digest_free(d);
    if (rc < 0)
        return rc;
    snprintf(line, sizeof line, "sha256:%s", hex);
    return read_hash(str_of(line), ret) ? 0 : -EIO;
}

const struct proxy_key *proxy_keys_find(const struct proxy_keys *k, struct str secret)
{
    unsigned char hash[PROXY_KEY_HASH];
    size_t found = SIZE_MAX;
    if (secret.len == 0 || secret.len > PROXY_KEY_SECRET_MAX || proxy_key_hash(secret, hash) < 0)
        return NULL;
    for (size_t i = 0; i < k->n; i++) {
        unsigned char differs = 0;
        for (size_t b = 0; b < PROXY_KEY_HASH; b++)
            differs |= (unsigned char)(k->list[i].hash[b] ^ hash[b]);
        size_t same = (size_t)0 - (size_t)(((unsigned)differs - 1) >> 31); /* all ones or none */
        found = (found & ~same) | (i & same);
    }
    return found == SIZE_MAX ? NULL : &k->list[found];
}

int proxy_key_new(char ret[PROXY_KEY_TEXT], struct err *err)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    unsigned char bits[33] = {0};
    if (getrandom(bits, 32, 0) != 32)
        return err_sys(err, -errno, "cannot make a random key");
    size_t n = (size_t)snprintf(ret, PROXY_KEY_TEXT, "berth_");
    for (size_t i = 0; i < 256; i += 6) {
        unsigned pair = (unsigned)bits[i / 8] << 8 | bits[i / 8 + 1];
        ret[n++] = digits[pair >> (10 - i % 8) & 63];
    }
    ret[n] = '\0';
    explicit_bzero(bits, sizeof bits);
    return 0;
}

bool proxy_key_allows(const struct proxy_key *k, const char *model)
{
    for (size_t i = 0; i < k->n_models; i++)
        if (strcmp(k->models[i], model) == 0)
            return true;
    return k->n_models == 0;
}
