/* SPDX-License-Identifier: MIT
 *
 * Contracts of one host: ports, addresses, what listens wider than it may, containers that publish nothing, files of secrets. What the schema proves of ports and addresses is not proven again; here is what hides in flags
 * and commands.
 */
#include "check_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEYS_MAX ((size_t)4 << 20) /* bytes of a file of keys */

/* ---- words of commands ---------------------------------------------------------------------------------------------- */

/* A flag that says where its program listens: "--port", "--web.listen-address", "--bind". Those that name somebody else's address ("--target", "--upstream-port") are none. */
static bool says_listen(struct str flag)
{
    static const char *const exact[] = {"-p", "--port", "--http-port", "--metrics-port", "--addr", "--address", "--host", "-H"};
    struct str name = str_split(&flag, '=');
    for (size_t i = 0; i < BASE_COUNT(exact); i++)
        if (str_eq_c(name, exact[i]))
            return true;
    return name.len > 1 && name.ptr[0] == '-' && (str_find(name, STR("listen")) >= 0 || str_find(name, STR("bind")) >= 0);
}

/* What a listening flag of a command says, word by word; *i moves behind it. Empty: this word is none. */
static struct str listen_value(const char *const *words, size_t n, size_t *i)
{
    struct str w = str_of(words[(*i)++]);
    if (!says_listen(w))
        return STR("");
    ptrdiff_t eq = str_find_char(w, '=');
    if (eq >= 0)
        return (struct str){w.ptr + eq + 1, w.len - (size_t)eq - 1};
    return *i < n ? str_of(words[(*i)++]) : STR("");
}

/* The port at the end of "7770", "127.0.0.1:7770", ":7770". 0: none. */
static uint16_t port_of(struct str value)
{
    size_t at = value.len;
    uint64_t port = 0;
    while (at > 0 && value.ptr[at - 1] >= '0' && value.ptr[at - 1] <= '9')
        at--;
    if (at == value.len || (at > 0 && value.ptr[at - 1] != ':') || str_to_u64((struct str){value.ptr + at, value.len - at}, &port) < 0 || port > UINT16_MAX)
        return 0;
    return (uint16_t)port;
}

static void words_of(const struct fleet_service *s, const char *const **ret, size_t *ret_n)
{
    *ret = s->n_command ? s->command : s->args;
    *ret_n = s->n_command ? s->n_command : s->n_args;
}

/* ---- ports -------------------------------------------------------------------------------------------------------------- */

/* Who has a port on a host; NULL: nobody else than `but`. */
static const char *owner_of(const struct check_run *c, const struct fleet_host *h, uint16_t port, const struct fleet_service *but)
{
    const struct fleet_router *o = &c->f->router;
    for (size_t i = 0; i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        if (s != but && s->host == h && s->port == port)
            return arena_printf(c->a, "service '%s'", s->name);
    }
    if (check_router_host(c->f) == h && ((!o->socket && o->port == port) || (o->admin && o->admin_port == port)))
        return "the router";
    return NULL;
}

static int judge_service_ports(struct check_run *c, const struct fleet_service *s, bool *broken)
{
    const char *const *words;
    size_t n;
    words_of(s, &words, &n);
    for (size_t i = 0; i < n;) {
        uint16_t port = port_of(listen_value(words, n, &i));
        const char *owner = port ? owner_of(c, s->host, port, s) : NULL;
        if (!owner)
            continue;
        *broken = true;
        return check_found(c, CHECK_BROKEN, check_subject(c, "service", s->name), check_at(c, s->pos), "its words say '%s', and port %u is that of %s on host '%s'", words[i - 1], (unsigned)port, owner, s->host->name);
    }
    return 0;
}

/* Other fleets' units on this machine. */
static int judge_unit_ports(struct check_run *c, const struct fleet_service *s, bool *broken)
{
    for (size_t i = 0; check_is_here(s->host) && i < c->n_units; i++) {
        const struct check_unit *u = &c->units[i];
        uint64_t port;
        if (!u->port || !u->fleet || strcmp(u->fleet, c->f->name) == 0 || str_to_u64(str_of(u->port), &port) < 0 || port != s->port)
            continue;
        *broken = true;
        return check_found(c, CHECK_BROKEN, check_subject(c, "service", s->name), check_at(c, s->pos), "port %u is that of service '%s' of fleet '%s', which is deployed here: %s", (unsigned)s->port, u->service, u->fleet, u->path);
    }
    return 0;
}

int check_ports(struct check_run *c)
{
    int r = check_want_units(c);
    for (size_t h = 0; r == 0 && h < c->f->n_hosts; h++) {
        const struct fleet_host *host = &c->f->hosts[h];
        bool broken = false;
        size_t n = check_router_host(c->f) == host ? (size_t)!c->f->router.socket + (c->f->router.admin != NULL) : 0;
        for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
            const struct fleet_service *s = &c->f->services[i];
            if (s->host != host)
                continue;
            n++;
            r = judge_service_ports(c, s, &broken);
            if (r == 0)
                r = judge_unit_ports(c, s, &broken);
        }
        if (r == 0 && !broken)
            r = check_found(c, n ? CHECK_HOLDS : CHECK_NONE, check_subject(c, "host", host->name), check_at(c, host->pos), n ? "%zu port%s, each once" : "nothing listens there", n, n == 1 ? "" : "s");
    }
    return r;
}

/* ---- addresses ------------------------------------------------------------------------------------------------------------ */

static bool is_ip(const char *text)
{
    unsigned char any[16];
    return text && (inet_pton(AF_INET, text, any) == 1 || inet_pton(AF_INET6, text, any) == 1);
}

/* Whether an interface of this machine has the address; all of 127/8 is loopback's. */
static int has_address(const char *ip, bool *ret, struct err *err)
{
    struct in_addr four;
    struct in6_addr six;
    bool v4 = inet_pton(AF_INET, ip, &four) == 1, v6 = inet_pton(AF_INET6, ip, &six) == 1;
    struct ifaddrs *list = NULL;
    *ret = check_is_wildcard(str_of(ip)) || (v4 && (ntohl(four.s_addr) >> 24) == 127);
    if (*ret)
        return 0;
    if (getifaddrs(&list) < 0)
        return err_sys(err, -errno, "cannot list the addresses of this machine");
    for (const struct ifaddrs *i = list; i && !*ret; i = i->ifa_next) {
        if (!i->ifa_addr)
            continue;
        if (v4 && i->ifa_addr->sa_family == AF_INET)
            *ret = ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr == four.s_addr;
        else if (v6 && i->ifa_addr->sa_family == AF_INET6)
            *ret = memcmp(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr, &six, sizeof six) == 0;
    }
    freeifaddrs(list);
    return 0;
}

static int judge_here(struct check_run *c, const char *subject, const char *at, const char *ip)
{
    bool has = false;
    int r = has_address(ip, &has, c->err);
    if (r < 0)
        return r;
    return check_found(c, has ? CHECK_HOLDS : CHECK_BROKEN, subject, at, has ? "%s is this machine's" : "no interface of this machine has %s", ip);
}

static int judge_router_address(struct check_run *c)
{
    const struct fleet_router *o = &c->f->router;
    const struct fleet_host *h = check_router_host(c->f);
    const char *subject = arena_dup(c->a, STR("router")), *at = check_at(c, o->pos);
    if (!o->declared)
        return check_found(c, CHECK_NONE, subject, NULL, "none is declared: it listens on loopback");
    if (o->socket)
        return check_found(c, CHECK_NONE, subject, at, "it listens on a socket");
    if (!h || check_is_here(h))
        return judge_here(c, subject, at, o->address);
    if (strncmp(o->address, "127.", 4) == 0 || check_is_wildcard(str_of(o->address)))
        return check_found(c, CHECK_HOLDS, subject, at, "every host has %s", o->address);
    if (!is_ip(h->address))
        return check_found(c, CHECK_UNPROVEN, subject, at, "which addresses host '%s' has cannot be seen from here", h->name);
    bool same = strcmp(h->address, o->address) == 0;
    return check_found(c, same ? CHECK_HOLDS : CHECK_BROKEN, subject, at, same ? "%s is the 'address' of host '%s'" : "%s is not the 'address' of host '%s', which is %s", o->address, h->name, h->address);
}

int check_address(struct check_run *c)
{
    int r = judge_router_address(c);
    for (size_t i = 0; r == 0 && i < c->f->n_hosts; i++) {
        const struct fleet_host *h = &c->f->hosts[i];
        if (check_is_here(h) && is_ip(h->address))
            r = judge_here(c, check_subject(c, "host", h->name), check_at(c, h->pos), h->address);
    }
    for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        if (check_is_here(s->host) && strncmp(s->bind, "127.", 4) != 0)
            r = judge_here(c, check_subject(c, "service", s->name), check_at(c, s->pos), s->bind);
    }
    return r;
}

/* ---- containers that commands start ------------------------------------------------------------------------------------------ */

struct container {
    bool host_network, published, wide; /* wide: a published port that every address of the host forwards */
    const char *wide_word;
};

/* One value of -p: "127.0.0.1:8080:80", "[::1]:8080:80", "8080:80", "80"; what is published is the part before the last colon. */
static void take_publish(struct container *k, const char *word, uint16_t port)
{
    struct str v = str_of(word), out = v;
    bool brackets = v.len && v.ptr[0] == '[';
    ptrdiff_t last = -1;
    for (size_t i = 0; i < v.len; i++)
        if (v.ptr[i] == ':')
            last = (ptrdiff_t)i;
    if (last >= 0)
        out.len = (size_t)last;
    bool mine = str_find(out, STR("{port}")) >= 0 || port_of(out) == port;
    struct str address = out;
    ptrdiff_t colon = -1;
    for (size_t i = 0; i < out.len; i++)
        if (out.ptr[i] == ':')
            colon = (ptrdiff_t)i;
    address.len = colon >= 0 ? (size_t)colon : 0;
    if (brackets && address.len > 1)
        address = (struct str){address.ptr + 1, address.len - 2};
    k->published = k->published || mine;
    if (address.len == 0 || check_is_wildcard(address)) {
        k->wide = true;
        k->wide_word = word;
    }
}

/* False: the command starts no container. */
static bool read_container(const struct fleet_service *s, struct container *ret)
{
    *ret = (struct container){.published = false};
    if (s->n_command < 2)
        return false;
    const char *slash = strrchr(s->command[0], '/'), *program = slash ? slash + 1 : s->command[0];
    if ((strcmp(program, "podman") != 0 && strcmp(program, "docker") != 0) || strcmp(s->command[1], "run") != 0)
        return false;
    for (size_t i = 2; i < s->n_command; i++) {
        const char *w = s->command[i], *next = i + 1 < s->n_command ? s->command[i + 1] : "";
        if (strcmp(w, "-p") == 0 || strcmp(w, "--publish") == 0)
            take_publish(ret, next, s->port);
        else if (strncmp(w, "--publish=", 10) == 0)
            take_publish(ret, w + 10, s->port);
        else if (strncmp(w, "-p", 2) == 0 && w[2])
            take_publish(ret, w + 2, s->port);
        ret->host_network = ret->host_network || strcmp(w, "--network=host") == 0 || strcmp(w, "--net=host") == 0 || ((strcmp(w, "--network") == 0 || strcmp(w, "--net") == 0) && strcmp(next, "host") == 0);
    }
    return true;
}

int check_published(struct check_run *c)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        const char *subject = check_subject(c, "service", s->name), *at = check_at(c, s->pos);
        struct container k;
        if (s->unit == FLEET_QUADLET)
            r = check_found(c, CHECK_HOLDS, subject, at, "a quadlet on the host's network");
        else if (!read_container(s, &k))
            r = check_found(c, CHECK_NONE, subject, at, "no container");
        else if (k.host_network || k.published)
            r = check_found(c, CHECK_HOLDS, subject, at, k.host_network ? "on the host's network" : "port %u is published", (unsigned)s->port);
        else
            r = check_found(c, CHECK_BROKEN, subject, at, "its container has a network of its own and does not publish port %u", (unsigned)s->port);
    }
    return r;
}

/* ---- what listens wider than loopback --------------------------------------------------------------------------------------- */

/* The word that binds a wildcard, or NULL: "0.0.0.0", "0.0.0.0:9100", "[::]:9100", "*:9100", ":9100" behind a flag that listens. */
static const char *wide_word(const struct fleet_service *s)
{
    const char *const *words;
    size_t n;
    words_of(s, &words, &n);
    for (size_t i = 0; i < n;) {
        struct str v = listen_value(words, n, &i);
        if (str_starts(v, STR("0.0.0.0")) || str_starts(v, STR("[::]")) || str_eq_c(v, "::") || str_starts(v, STR("*")) || (v.len > 1 && v.ptr[0] == ':' && port_of(v)))
            return words[i - 1];
    }
    return NULL;
}

int check_open(struct check_run *c)
{
    const struct fleet_router *o = &c->f->router;
    const char *router = arena_dup(c->a, STR("router"));
    int r = check_found(c, CHECK_HOLDS, router, o->declared ? check_at(c, o->pos) : NULL, "%s", o->socket ? "a socket of this machine" : o->keys_file ? "asks for keys" : "on loopback");
    for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        const char *subject = check_subject(c, "service", s->name), *at = check_at(c, s->pos), *word = wide_word(s);
        struct container k = {.wide = false};
        if (read_container(s, &k) && k.wide && !k.host_network)
            r = check_found(c, CHECK_BROKEN, subject, at, "its container publishes '%s' on every address of the host", k.wide_word);
        else if (word && !read_container(s, &k))
            r = check_found(c, CHECK_BROKEN, subject, at, "its words bind '%s', which is every address of the host", word);
        else
            r = check_found(c, CHECK_HOLDS, subject, at, s->key ? "on %s, with a key" : "on %s", s->bind);
    }
    return r;
}

/* ---- secrets ----------------------------------------------------------------------------------------------------------------- */

static bool has_key(struct str text)
{
    while (text.ptr) {
        struct str line = str_trim(str_split(&text, '\n'));
        if (line.len && line.ptr[0] != '#' && str_find(line, STR(" sha256:")) > 0)
            return true;
    }
    return false;
}

/* What is wrong with such a file, or NULL; rights: those that others must not have. */
static const char *secret_wrong(struct check_run *c, const char *path, mode_t rights, bool keys)
{
    const char *wrong = check_file_wrong(c, path);
    struct stat st;
    if (wrong)
        return wrong;
    if (stat(path, &st) == 0 && st.st_mode & rights)
        return arena_printf(c->a, "'%s' has rights %04o: others may %s it", check_short(c, path), (unsigned)(st.st_mode & 07777), st.st_mode & rights & (S_IWGRP | S_IWOTH) ? "change" : "read");
    if (keys) {
        base_autobuf struct buf text = BUF_INIT(KEYS_MAX);
        struct err err;
        if (os_read_file(AT_FDCWD, path, &text, &err) < 0)
            return arena_dup(c->a, str_of(err.text));
        if (!has_key(buf_str(&text)))
            return arena_printf(c->a, "'%s' holds no key: every client is refused", check_short(c, path));
    }
    return NULL;
}

int check_secrets(struct check_run *c)
{
    const struct fleet_router *o = &c->f->router;
    const struct {
        const char *what, *path;
        mode_t rights;
        bool keys;
    } files[] = {{"keys", o->keys_file, S_IRWXG | S_IRWXO, true}, /* the router takes no other */
                 {"certificate", o->certificate, S_IWGRP | S_IWOTH, false},
                 {"key of the certificate", o->key, S_IWGRP | S_IWOTH | S_IROTH, false}};
    const struct fleet_host *h = check_router_host(c->f);
    int r = 0;
    bool any = false;
    for (size_t i = 0; r == 0 && i < BASE_COUNT(files); i++) {
        if (!files[i].path)
            continue;
        any = true;
        const char *subject = check_subject(c, "router", files[i].what);
        if (h && !check_is_here(h)) {
            r = check_found(c, CHECK_UNPROVEN, subject, check_at(c, o->pos), "the router runs on host '%s'", h->name);
            continue;
        }
        const char *wrong = secret_wrong(c, files[i].path, files[i].rights, files[i].keys);
        r = check_found(c, wrong ? CHECK_BROKEN : CHECK_HOLDS, subject, check_at(c, o->pos), "%s", wrong ? wrong : check_short(c, files[i].path));
    }
    if (r == 0 && !any)
        r = check_found(c, CHECK_NONE, arena_dup(c->a, STR("router")), NULL, "it has neither keys nor a certificate");
    return r;
}
