/* SPDX-License-Identifier: MIT
 *
 * `key:` of a service: the file with the one key that its engine asks for. Whoever asks the engine (the router, a proof, a stop) reads the same path on its own machine. Only an engine with a key may listen where other
 * machines reach it. The key itself is never in a fleet: it is read when it is used, so that a file that is replaced is followed.
 */
#include <errno.h>
#include <fcntl.h>
#include <os/os.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fleet_int.h"

#define FILE_BYTES_MAX 4096 /* of a file with one key: more is another file */

/* ---- declared ---------------------------------------------------------------------------------------------------- */

int fleet_read_service_key(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    int rc = fleet_text(r, n, &s->key);
    if (rc < 0)
        return rc;
    /* on another machine, where no folder of ours is */
    return s->key[0] == '/' ? 0 : fleet_refuse(r, n, "%s must be an absolute path, on the host of the service and on the router's", fleet_label(r));
}

bool fleet_service_wide(const struct fleet_service *s)
{
    return s->bind && !fleet_service_socket(s) && !fleet_is_loopback(str_of(s->bind));
}

int fleet_rules_key(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct yaml_node *key = yaml_get(n, "key"), *bind = yaml_get(n, "bind");
    bool llama = strcmp(s->runtime->engine, "llama.cpp") == 0;
    if (key && !llama)
        return fleet_refuse_at(r, fleet_key_pos_of(key), "'key' of %s goes with engine 'llama.cpp' only: '%s' does not read one from a file; remove it", r->of, s->runtime->engine);
    if (!key && fleet_service_wide(s) && llama)
        return fleet_refuse(r, bind, "'bind' of %s is '%s', which other machines could reach: add 'key', the file with the key that it shall ask for, or use '127.0.0.1'", r->of, s->bind);
    if (!key && fleet_service_wide(s))
        return fleet_refuse(r, bind, "'bind' of %s is '%s', which other machines could reach; engine '%s' asks for no key: use '127.0.0.1' and let clients ask the router", r->of, s->bind, s->runtime->engine);
    for (size_t i = 0; key && i < s->n_credentials; i++)
        if (strcmp(s->credentials[i].name, FLEET_KEY_CREDENTIAL) == 0)
            return fleet_refuse(r, yaml_get(n, "credentials"), "'credentials' of %s has a name '" FLEET_KEY_CREDENTIAL "', which is that of its 'key'; choose another", r->of);
    return 0;
}

/* ---- read ------------------------------------------------------------------------------------------------------------ */

static int parse(struct str text, const char *path, char ret[FLEET_KEY_MAX + 1], struct err *err)
{
    struct str key = str_trim(text);
    if (key.len == 0)
        return err_set(err, -EINVAL, "key file '%s' is empty: write a random key into it, and the same on the router's host", path);
    for (size_t i = 0; i < key.len; i++)
        if ((unsigned char)key.ptr[i] <= 0x20 || (unsigned char)key.ptr[i] >= 0x7f)
            return err_set(err, -EINVAL, "key file '%s' must hold one key, in ASCII and without spaces", path);
    if (key.len < FLEET_KEY_MIN || key.len > FLEET_KEY_MAX)
        return err_set(err, -EINVAL, "the key in '%s' has %zu characters; use %d to %d", path, key.len, FLEET_KEY_MIN, FLEET_KEY_MAX);
    memcpy(ret, key.ptr, key.len);
    ret[key.len] = '\0';
    return 0;
}

int fleet_key_read(const char *path, char ret[FLEET_KEY_MAX + 1], struct err *err)
{
    struct stat st;
    base_autobuf struct buf text = BUF_INIT(FILE_BYTES_MAX);
    os_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, -errno, "cannot read key file '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "key file '%s' is no regular file", path);
    if (st.st_mode & 077)
        return err_set(err, -EACCES, "key file '%s' can be read or written by others (mode %03o); chmod 600 '%s'", path, (unsigned)(st.st_mode & 0777), path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(err, -EACCES, "key file '%s' belongs to somebody else (uid %u); chown it", path, (unsigned)st.st_uid);
    int rc = os_read_all(fd, &text, err);
    rc = rc < 0 ? err_prefix(err, "key file '%s'", path) : parse(buf_str(&text), path, ret, err);
    if (text.ptr)
        explicit_bzero(text.ptr, text.cap);
    return rc;
}
