/* SPDX-License-Identifier: MIT
 *
 * Where the router is reached and as whom: its listening socket as the fleet declares it, and the files of its certificate. Whoever owns a router does this before it has one: the
 * worker process has no rights to files and gets what is in them over its channel.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <os/os.h>

#include "proxy_int.h"

int proxy_address(const struct fleet *f, struct net_addr *ret, struct err *err)
{
    const struct fleet_router *r = &f->router;
    int rc = r->socket ? net_addr_unix(r->socket, ret) : net_addr_ip(r->address, r->port, ret);
    return rc < 0 ? err_set(err, rc, "the router cannot listen at '%s'", r->socket ? r->socket : r->address) : 0;
}

/* The file is its owner's alone until here. Who else may write in its folder could put a link there: rights go to the socket itself, or nowhere. */
static int give_to_group(const char *path, const char *name, struct err *err)
{
    char self[32];
    struct stat st;
    errno = 0;
    const struct group *g = getgrnam(name); /* one thread: nobody else asks */
    if (!g)
        return err_set(err, errno ? -errno : -ENOENT, "the router's group '%s' is not known on this machine", name);
    os_autoclose int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, -errno, "cannot give '%s' to group '%s'", path, name);
    if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
        return err_set(err, -EPERM, "cannot give '%s' to group '%s': it is not the router's socket any more", path, name);
    if (fchownat(fd, "", (uid_t)-1, g->gr_gid, AT_EMPTY_PATH) < 0)
        return err_sys(err, -errno, "cannot give '%s' to group '%s'", path, name);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return chmod(self, 0660) < 0 ? err_sys(err, -errno, "cannot set the rights of '%s'", path) : 0;
}

/* Several that share an address. The first one, which shares it with nobody, has shown that nobody else is there: those that share would not. */
static int bind_shared(struct net_addr *a, int first, unsigned n, int *fds, struct err *err)
{
    (void)close(first);
    for (unsigned i = 0; i < n; i++) {
        fds[i] = net_listen_socket(a, true, err);
        if (fds[i] < 0) {
            int rc = fds[i];
            while (i > 0)
                (void)close(fds[--i]);
            return rc;
        }
    }
    return (int)n;
}

int proxy_bind(const struct fleet *f, int fds[FLEET_ROUTER_LOOPS_MAX], struct net_addr *ret, struct err *err)
{
    struct net_addr a;
    int rc = proxy_address(f, &a, err);
    if (rc < 0)
        return rc;
    fds[0] = net_listen_socket(&a, false, err);
    if (fds[0] < 0)
        return fds[0];
    if (f->router.group)
        rc = give_to_group(f->router.socket, f->router.group, err);
    if (rc == 0 && net_socket_addr(fds[0], &a) < 0)
        rc = err_set(err, -EIO, "the router's socket has no address");
    if (rc < 0) {
        if (f->router.socket)
            (void)unlink(f->router.socket);
        (void)close(fds[0]);
        return rc;
    }
    rc = a.unix_path || f->router.loops == 1 ? 1 : bind_shared(&a, fds[0], f->router.loops, fds, err);
    if (rc > 0)
        *ret = a;
    return rc;
}

const char *proxy_url(const struct fleet *f, const struct net_addr *a, char out[PROXY_URL_TEXT])
{
    char text[NET_ADDR_TEXT];
    const char *scheme = a->unix_path ? "unix:" : f->router.certificate ? "https://" : "http://";
    snprintf(out, PROXY_URL_TEXT, "%s%s", scheme, net_addr_text(a, text));
    return out;
}

/* ---- certificate ------------------------------------------------------------------------------------------ */

/* Of a secret nobody but its owner and a group may know anything. */
static int read_pem(const char *path, bool secret, struct buf *out, struct err *err)
{
    struct stat st;
    os_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, -errno, "cannot read '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "'%s' is no file", path);
    if (secret && (st.st_mode & 07) != 0)
        return err_set(err, -EPERM, "key '%s' is open to everybody on this machine; take that away: chmod o= '%s'", path, path);
    int rc = os_read_all(fd, out, err);
    return rc < 0 ? err_prefix(err, "'%s'", path) : 0;
}

int proxy_tls_read(const struct fleet *f, struct proxy_pair *ret, struct err *err)
{
    struct proxy_pair p = {.certificate = BUF_INIT(NET_PEM_MAX), .key = BUF_INIT(NET_PEM_MAX)};
    struct net_tls *trial;
    int rc = f->router.certificate ? read_pem(f->router.certificate, false, &p.certificate, err) : 0;
    if (rc == 0 && f->router.key)
        rc = read_pem(f->router.key, true, &p.key, err);
    if (rc == 0 && f->router.certificate) {
        rc = net_tls_new(buf_str(&p.certificate), buf_str(&p.key), &trial, err);
        if (rc == 0)
            trial = net_tls_unref(trial);
        else
            rc = err_prefix(err, "certificate '%s' with key '%s'", f->router.certificate, f->router.key);
    }
    if (rc < 0) {
        proxy_pair_release(&p);
        return rc;
    }
    proxy_pair_release(ret);
    *ret = p;
    return 0;
}

void proxy_pair_release(struct proxy_pair *p)
{
    if (p->key.ptr)
        explicit_bzero(p->key.ptr, p->key.cap);
    buf_release(&p->certificate);
    buf_release(&p->key);
}

int proxy_pair_text(const struct proxy_pair *p, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_obj(o, "tls");
    json_out_str(o, "certificate", buf_str(&p->certificate));
    json_out_str(o, "key", buf_str(&p->key));
    json_out_end(o);
    json_out_end(o);
    int rc = json_out_finish(o, false, out);
    json_out_free(o);
    return rc;
}
