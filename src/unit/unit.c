/* SPDX-License-Identifier: MIT
 *
 * Names of units, the comment that says whose one is, and the sections that both forms share.
 */
#include <errno.h>
#include <stdio.h>

#include "unit_int.h"

#define MARK "# berth: "
#define OWNER MARK "fleet="
#define RESTART_MS 2000      /* before the first restart ... */
#define RESTART_MAX_S 60     /* ... rising to here */
#define RESTART_STEPS 6
#define MEMORY_SCORE 100     /* an engine goes before what the machine is reached by */

/* ---- names ----------------------------------------------------------------------------------------------- */

const char *unit_base(const char *fleet, const char *service, char out[UNIT_NAME_MAX])
{
    snprintf(out, UNIT_NAME_MAX, "berth-%.*s-%.*s", FLEET_NAME_MAX, fleet, FLEET_NAME_MAX, service);
    return out;
}

const char *unit_file(const char *fleet, const char *service, enum unit_form form, char out[UNIT_NAME_MAX])
{
    snprintf(out, UNIT_NAME_MAX, "berth-%.*s-%.*s%s", FLEET_NAME_MAX, fleet, FLEET_NAME_MAX, service, form == UNIT_CONTAINER ? ".container" : ".service");
    return out;
}

const char *unit_name(const char *fleet, const char *service, char out[UNIT_NAME_MAX])
{
    return unit_file(fleet, service, UNIT_SERVICE, out);
}

int unit_version_parse(struct str text, struct unit_version *ret)
{
    struct unit_version v = {0};
    size_t i = 0;
    while (i < text.len && (text.ptr[i] < '0' || text.ptr[i] > '9'))
        i++;
    unsigned *part[] = {&v.major, &v.minor};
    for (size_t k = 0; k < BASE_COUNT(part); k++) {
        size_t begin = i;
        while (i < text.len && text.ptr[i] >= '0' && text.ptr[i] <= '9')
            i++;
        uint64_t n;
        if (str_to_u64((struct str){text.ptr + begin, i - begin}, &n) < 0 || n > 1000000)
            return -EBADMSG;
        *part[k] = (unsigned)n;
        if (i + 1 >= text.len || text.ptr[i] != '.' || text.ptr[i + 1] < '0' || text.ptr[i + 1] > '9')
            break;
        i++;
    }
    *ret = v;
    return 0;
}

/* ---- whose it is ------------------------------------------------------------------------------------------ */

/* A value of "key=" up to the next space. */
static bool take(struct str *rest, const char *key, struct str *ret)
{
    struct str k = str_of(key);
    if (!str_starts(*rest, k))
        return false;
    *rest = (struct str){rest->ptr + k.len, rest->len - k.len};
    *ret = str_split(rest, ' ');
    return ret->len > 0;
}

bool unit_owner_parse(struct str text, struct unit_owner *ret)
{
    for (int line = 0; line < 2 && text.ptr; line++) {
        struct str rest = str_trim(str_split(&text, '\n'));
        struct unit_owner o;
        if (!str_starts(rest, STR(OWNER)))
            continue;
        rest = (struct str){rest.ptr + strlen(MARK), rest.len - strlen(MARK)};
        if (!take(&rest, "fleet=", &o.fleet) || !take(&rest, "service=", &o.service) || !take(&rest, "digest=", &o.digest))
            return false;
        *ret = o;
        return true;
    }
    return false;
}

/* FNV-1a: tells two texts apart, proves nothing. */
static uint64_t digest(struct str s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.len; i++)
        h = (h ^ (unsigned char)s.ptr[i]) * 0x100000001b3u;
    return h;
}

/* The comment, then the body. */
static int finish(const char *fleet, const char *service, const struct buf *body, struct buf *out, struct err *err)
{
    buf_addf(out, "# Made by berth from its fleet file. What is changed here is lost: change the fleet file and run 'berth deploy'.\n");
    buf_addf(out, OWNER "%s service=%s digest=%016llx\n", fleet, service, (unsigned long long)digest(buf_str(body)));
    buf_add_str(out, buf_str(body));
    int r = buf_status(body) < 0 ? buf_status(body) : buf_status(out);
    return r < 0 ? err_sys(err, r, "the unit of service '%s' cannot be written", service) : 0;
}

int unit_render(const struct unit_input *in, struct buf *out, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(UNIT_TEXT_MAX);
    int r = in->form == UNIT_CONTAINER ? unit_quadlet(in, &body, err) : unit_systemd(in, &body, err);
    return r < 0 ? r : finish(in->fleet, in->service->name, &body, out, err);
}

static size_t count(const char *const *words)
{
    size_t n = 0;
    while (words[n])
        n++;
    return n;
}

/* Its supervisor keeps its process through an upgrade, so that systemd sees none. It drops its workers' rights itself. */
int unit_render_router(const struct unit_router *in, struct buf *out, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(UNIT_TEXT_MAX);
    buf_addf(&body, "[Unit]\nDescription=router of fleet %s\nDocumentation=man:berth(1)\nWants=network-online.target\nAfter=network-online.target\nStartLimitIntervalSec=0\n\n[Service]\n", in->fleet);
    unit_key(&body, "Type", "notify");
    int r = unit_words(&body, "ExecStart", in->start, count(in->start), true, err);
    if (r == 0)
        r = unit_words(&body, "ExecReload", in->reload, count(in->reload), true, err);
    if (r < 0)
        return r;
    unit_key(&body, "KillMode", "mixed");
    unit_key(&body, "TimeoutStopSec", "45"); /* streams have 30 s */
    unit_key(&body, "Restart", "always");
    unit_key(&body, "RestartSec", "1");
    unit_key(&body, "LimitNOFILE", "1048576"); /* a connection takes one, and one to its replica */
    buf_addf(&body, "\n[Install]\nWantedBy=%s\n", in->scope == FLEET_USER ? "default.target" : "multi-user.target");
    return finish(in->fleet, "router", &body, out, err);
}

/* ---- keys --------------------------------------------------------------------------------------------------- */

void unit_key(struct buf *out, const char *key, const char *value)
{
    buf_addf(out, "%s=%s\n", key, value);
}

static int bad_word(const char *key, const char *word, struct err *err)
{
    base_autobuf struct buf shown = BUF_INIT(512);
    buf_add_printable(&shown, str_of(word), 60);
    return err_set(err, -EINVAL, "'%s' cannot stand in a unit's %s: it is not UTF-8", buf_status(&shown) < 0 ? "" : shown.ptr, key);
}

int unit_words(struct buf *out, const char *key, const char *const *words, size_t n, bool commands, struct err *err)
{
    buf_addf(out, "%s=", key);
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_add_char(out, ' ');
        if (unit_quote(str_of(words[i]), commands, out) < 0)
            return bad_word(key, words[i], err);
    }
    buf_add_char(out, '\n');
    return 0;
}

int unit_raw(struct buf *out, const char *key, const char *value, bool commands, struct err *err)
{
    struct str v = str_of(value), bare = str_trim(v);
    bool broken = !str_is_utf8(v) || !str_eq(v, bare) || v.len == 0 || v.ptr[v.len - 1] == '\\';
    for (size_t i = 0; !broken && i < v.len; i++)
        broken = (unsigned char)v.ptr[i] < 0x20 || v.ptr[i] == 0x7f;
    if (broken) {
        base_autobuf struct buf shown = BUF_INIT(1024);
        buf_add_printable(&shown, v, 200);
        return err_set(err, -EINVAL, "'%s' cannot stand in a unit's %s, which takes no quotes: no space around it, no control characters, no '\\' at its end", buf_status(&shown) < 0 || !shown.ptr ? "" : shown.ptr, key);
    }
    buf_addf(out, "%s=", key);
    for (size_t i = 0; i < v.len; i++) {
        buf_add_char(out, v.ptr[i]);
        if (v.ptr[i] == '%' || (v.ptr[i] == '$' && commands))
            buf_add_char(out, v.ptr[i]);
    }
    buf_add_char(out, '\n');
    return 0;
}

int unit_each(struct buf *out, const char *key, const char *const *words, size_t n, bool commands, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        int r = unit_words(out, key, &words[i], 1, commands, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- what both forms have ------------------------------------------------------------------------------------ */

int unit_head(const struct unit_input *in, struct buf *out, struct err *err)
{
    const struct fleet_service *s = in->service;
    buf_add_c(out, "\n[Unit]\n");
    /* names of fleets, services, models and engines have no character that means anything here */
    buf_addf(out, "Description=%s: %s%s%s on port %u, fleet %s\n", s->name, s->model ? s->model->name : "", s->model ? " by " : "", s->runtime->engine, s->port, in->fleet);
    unit_key(out, "Documentation", "man:berth(1)");
    unit_key(out, "Wants", "network-online.target");
    unit_key(out, "After", "network-online.target");
    /* never given up: a device that comes late, or a driver that is being replaced, is no reason to stay down */
    unit_key(out, "StartLimitIntervalSec", "0");
    /* a disk that is mounted late holds the start up instead of failing it */
    return unit_each(out, "RequiresMountsFor", in->reads, in->n_reads, false, err);
}

void unit_service(const struct unit_input *in, struct buf *out)
{
    uint64_t stop_s = ((in->stop_limit_ms ? in->stop_limit_ms : UNIT_STOP_MS) + 999) / 1000;
    /* an engine whose worker has died may end with 0 */
    unit_key(out, "Restart", "always");
    buf_addf(out, "RestartSec=%d\n", RESTART_MS / 1000);
    if (!unit_before(in->systemd, 254, 0)) {
        buf_addf(out, "RestartSteps=%d\n", RESTART_STEPS);
        buf_addf(out, "RestartMaxDelaySec=%d\n", RESTART_MAX_S);
    }
    buf_addf(out, "TimeoutStopSec=%llu\n", (unsigned long long)stop_s);
    buf_addf(out, "OOMScoreAdjust=%d\n", MEMORY_SCORE);
    unit_key(out, "OOMPolicy", "stop");
}

void unit_install(const struct unit_input *in, struct buf *out)
{
    buf_add_c(out, "\n[Install]\n");
    unit_key(out, "WantedBy", in->service->host->scope == FLEET_USER ? "default.target" : "multi-user.target");
}
