/* SPDX-License-Identifier: MIT
 *
 * Rules between the keys of one part: what an engine would refuse at load, ignore without a word, or change behind the
 * author's back is refused here, with the line that says it. They run when the part is read; r->of names it.
 */
#include "fleet_int.h"

/* ---- hosts and runtimes ----------------------------------------------------------------------------------------- */

static bool same_target(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

int fleet_rules_host(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index)
{
    const struct fleet_host *h = part;
    if (h->ssh && strcmp(h->name, "here") == 0)
        return fleet_refuse(r, yaml_get(n, "ssh"), "host 'here' is this machine; remove 'ssh' or choose another name");
    for (size_t i = 0; i < index; i++) {
        const struct fleet_host *other = &r->fleet->hosts[i];
        if (!same_target(h->ssh, other->ssh))
            continue;
        if (h->ssh)
            return fleet_refuse(r, yaml_get(n, "ssh"), "%s has the ssh target of host '%s' at line %u; declare a machine once", r->of,
                                other->name, other->pos.line);
        return fleet_refuse_at(r, h->pos, "%s is this machine, as host '%s' at line %u is; add 'ssh' to one or remove it", r->of, other->name,
                               other->pos.line);
    }
    for (size_t i = 0; i < h->n_devices; i++)
        if (h->floor_bytes >= h->devices[i].memory_bytes)
            return fleet_refuse(r, yaml_get(n, "floor"), "'floor' of %s leaves nothing of device '%s'; it must be less than its memory", r->of,
                                h->devices[i].name);
    return 0;
}

int fleet_rules_runtime(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index)
{
    (void)index;
    const struct fleet_runtime *rt = part;
    const struct yaml_node *packages = yaml_get(n, "packages");
    if (rt->source == FLEET_SOURCE_DEBIAN && !packages)
        return fleet_refuse_at(r, rt->pos, "%s has no 'packages'; list the Debian packages that bring the engine", r->of);
    if (rt->source != FLEET_SOURCE_DEBIAN && packages)
        return fleet_refuse_at(r, fleet_key_pos_of(packages), "'packages' of %s belongs to a 'debian:' source; remove it", r->of);
    return 0;
}

/* ---- services --------------------------------------------------------------------------------------------------------- */

static const char *const generic_keys[] = {"command", "health", "identity"};
/* Keys that become flags of an engine that berth knows. */
static const char *const flag_keys[] = {"split",        "gpu-layers",  "batch",     "ubatch",  "kv",  "flash-attention", "unified-kv",
                                        "prompt-cache", "speculative", "draft-max", "threads", "args"};

static bool has_placeholder(const struct fleet_service *s, const char *placeholder)
{
    for (size_t i = 0; i < s->n_command; i++)
        if (strstr(s->command[i], placeholder))
            return true;
    return false;
}

/* An image is started by podman, and podman starts nothing else. */
static int rules_unit(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    bool image = s->runtime->source == FLEET_SOURCE_OCI;
    const struct yaml_node *unit = yaml_get(n, "unit");
    struct fleet_pos at = unit ? fleet_pos_of(unit) : s->pos;
    if (image && s->unit != FLEET_QUADLET)
        return fleet_refuse_at(r, at, "'unit' of %s must be 'quadlet': its runtime '%s' is an image", r->of, s->runtime->name);
    if (!image && s->unit == FLEET_QUADLET)
        return fleet_refuse_at(r, at, "'unit' of %s is 'quadlet', but its runtime '%s' is no image; give it 'source: oci:IMAGE@sha256:DIGEST', or use 'systemd'", r->of, s->runtime->name);
    return 0;
}

static int rules_generic(struct fleet_reader *r, const struct yaml_node *n, struct fleet_service *s)
{
    if (!s->command)
        return fleet_refuse_at(r, s->pos, "%s has no 'command'; engine 'generic' runs what it says", r->of);
    if (!s->model && has_placeholder(s, "{model}"))
        return fleet_refuse(r, yaml_get(n, "command"), "'command' of %s holds {model}, but the service has no 'model'; add it", r->of);
    for (size_t i = 0; i < BASE_COUNT(flag_keys); i++) {
        const struct yaml_node *k = yaml_get(n, flag_keys[i]);
        if (k)
            return fleet_refuse_at(r, fleet_key_pos_of(k), "'%s' of %s has no effect with engine 'generic'; write it into 'command'", flag_keys[i],
                                   r->of);
    }
    if (!s->health)
        s->health = "/health";
    return 0;
}

static int rules_known_engine(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    if (!s->model)
        return fleet_refuse_at(r, s->pos, "%s has no 'model'; add it", r->of);
    for (size_t i = 0; i < BASE_COUNT(generic_keys); i++) {
        const struct yaml_node *k = yaml_get(n, generic_keys[i]);
        if (k)
            return fleet_refuse_at(r, fleet_key_pos_of(k), "'%s' of %s belongs to engine 'generic'; engine '%s' does not need it, remove it",
                                   generic_keys[i], r->of, s->runtime->engine);
    }
    return 0;
}

static int rules_numbers(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct fleet_shape *h = &s->shape;
    if (h->context && h->context < h->slots)
        return fleet_refuse(r, yaml_get(n, "context"), "'context' of %s is %u tokens for %u slots; it is the total and must be at least as many",
                            r->of, h->context, h->slots);
    if (h->batch && h->ubatch > h->batch)
        return fleet_refuse(r, yaml_get(n, "ubatch"), "'ubatch' of %s is %u, more than its 'batch' of %u; the engine would lower it", r->of,
                            h->ubatch, h->batch);
    if (s->host->n_devices && h->n_split > s->host->n_devices)
        return fleet_refuse(r, yaml_get(n, "split"), "'split' of %s has %zu shares, but host '%s' has %zu device%s; give each device one", r->of, h->n_split,
                            s->host->name, s->host->n_devices, s->host->n_devices == 1 ? "" : "s");
    return 0;
}

const char *const fleet_kv_types[FLEET_KV_TYPES] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"};

static int kv_type(struct fleet_reader *r, const struct yaml_node *n, const char *name, size_t *ret)
{
    for (size_t i = 0; i < FLEET_KV_TYPES; i++) {
        if (strcmp(fleet_kv_types[i], name) == 0) {
            *ret = i;
            return 0;
        }
    }
    const char *near = str_nearest(str_of(name), fleet_kv_types, FLEET_KV_TYPES);
    if (near)
        return fleet_refuse(r, n, "'kv' of %s names type '%s', which is unknown; did you mean '%s'?", r->of, name, near);
    return fleet_refuse(r, n, "'kv' of %s names type '%s', which is unknown; use f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1", r->of,
                        name);
}

static int rules_kv(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct yaml_node *kv = yaml_get(n, "kv");
    size_t type = 0;
    int rc = s->shape.kv_k ? kv_type(r, yaml_get(kv, "k"), s->shape.kv_k, &type) : 0;
    if (rc < 0 || !s->shape.kv_v)
        return rc;
    rc = kv_type(r, yaml_get(kv, "v"), s->shape.kv_v, &type);
    if (rc < 0)
        return rc;
    if (type >= FLEET_KV_PLAIN && s->shape.flash_attention == FLEET_OFF)
        return fleet_refuse(r, yaml_get(kv, "v"), "'v' of 'kv' of %s is '%s', which needs flash-attention, and that is off", r->of,
                            s->shape.kv_v);
    return 0;
}

const char *const fleet_spec_types[FLEET_SPEC_TYPES] = {"draft-simple", "draft-eagle3", "draft-mtp",     "draft-dflash", "draft-dspark",
                                                         "ngram-simple", "ngram-map-k",  "ngram-map-k4v", "ngram-mod",    "ngram-cache"};

static bool is_draft(const char *type)
{
    return strncmp(type, "draft-", 6) == 0;
}

/* One type of speculation, of which the list holds those before it too. */
static int rule_speculative(struct fleet_reader *r, const struct yaml_node *c, const struct fleet_service *s, size_t i)
{
    const char *const *all = s->shape.speculative, *type = all[i];
    const char *near = str_nearest(str_of(type), fleet_spec_types, FLEET_SPEC_TYPES);
    bool known = false;
    for (size_t k = 0; k < FLEET_SPEC_TYPES; k++)
        known = known || strcmp(type, fleet_spec_types[k]) == 0;
    if (!known && near)
        return fleet_refuse(r, c, "'speculative' of %s names '%s', which is unknown; did you mean '%s'?", r->of, type, near);
    if (!known)
        return fleet_refuse(r, c,
                            "'speculative' of %s names '%s', which is unknown; use draft-simple, -eagle3, -mtp, -dflash or -dspark, and ngram-simple, "
                            "-map-k, -map-k4v, -mod or -cache",
                            r->of, type);
    for (size_t k = 0; k < i; k++)
        if (strcmp(all[k], type) == 0)
            return fleet_refuse(r, c, "'speculative' of %s names '%s' twice; remove one", r->of, type);
    if (!is_draft(type))
        return 0;
    if (i > 0)
        return fleet_refuse(r, c, "'speculative' of %s may name one draft type, as its first item; move or remove '%s'", r->of, type);
    /* The engine would run without speculation and not say so. MTP drafts with the model's own layers. */
    if (!s->model->drafter && strcmp(type, "draft-mtp") != 0)
        return fleet_refuse(r, c, "'speculative' of %s names '%s', but model '%s' at line %u has no 'drafter'; add one there", r->of, type, s->model->name,
                            s->model->pos.line);
    return 0;
}

static int rules_speculative(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct yaml_node *list = yaml_get(n, "speculative"), *max = yaml_get(n, "draft-max");
    size_t i = 0;
    for (const struct yaml_node *c = list ? list->first : NULL; c; c = c->next) {
        int rc = rule_speculative(r, c, s, i++);
        if (rc < 0)
            return rc;
    }
    if (max && !list)
        return fleet_refuse_at(r, fleet_key_pos_of(max), "'draft-max' of %s has no effect without 'speculative'; add that or remove this", r->of);
    return 0;
}

/* Less free memory than the host asks for is a decision: the next person must find out why. */
static int rules_floor(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct yaml_node *floor = yaml_get(n, "floor"), *slack = yaml_get(n, "slack"), *reason = yaml_get(n, "reason");
    const struct yaml_node *vllm = yaml_get(n, "vllm");
    if ((floor || slack) && (!s->reason || !s->reason[0]))
        return fleet_refuse_at(r, fleet_key_pos_of(floor ? floor : slack), "'%s' of %s is its own and has no 'reason'; write why, every plan repeats it", floor ? "floor" : "slack", r->of);
    if (reason && !floor && !slack)
        return fleet_refuse_at(r, fleet_key_pos_of(reason), "'reason' of %s gives reasons for nothing; it goes with 'floor' or 'slack'", r->of);
    if (vllm && strcmp(s->runtime->engine, "vllm") != 0)
        return fleet_refuse_at(r, fleet_key_pos_of(vllm), "'vllm' of %s has no effect with engine '%s'; remove it", r->of, s->runtime->engine);
    return 0;
}

/* What no engine could do, or nobody could ask it. */
static int rules_serves(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct yaml_node *serves = yaml_get(n, "serves"), *efforts = yaml_get(serves, "efforts"), *media = s->serves.images ? yaml_get(serves, "images") : yaml_get(serves, "sound");
    if (!serves)
        return 0;
    if (strcmp(s->runtime->engine, "generic") == 0 && !s->identity)
        return fleet_refuse_at(r, fleet_key_pos_of(serves), "'serves' of %s cannot be proven without 'identity', the path of its list of models; add that or remove this", r->of);
    if (strcmp(s->runtime->engine, "llama.cpp") == 0 && (s->serves.images || s->serves.sound) && !s->model->projector)
        return fleet_refuse_at(r, fleet_key_pos_of(media), "'%s' of 'serves' of %s takes a projector, but model '%s' at line %u has no 'projector'; add one there", s->serves.images ? "images" : "sound", r->of,
                               s->model->name, s->model->pos.line);
    for (size_t i = 0; i < s->serves.n_efforts; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(s->serves.efforts[i], s->serves.efforts[k]) == 0)
                return fleet_refuse(r, efforts, "'efforts' of 'serves' of %s names '%s' twice; remove one", r->of, s->serves.efforts[i]);
    return 0;
}

static int rules_start(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    static const char *const keys[] = {"idle-stop", "pin", "preload", "prompt-files"};
    if (s->start == FLEET_ON_DEMAND) {
        if (!fleet_service_local(s))
            return fleet_refuse(r, yaml_get(n, "start"), "'start' of %s is 'on-demand', which only a child of 'berth up' on this machine can be", r->of);
        if (s->pin && s->idle_stop_ms)
            return fleet_refuse_at(r, fleet_key_pos_of(yaml_get(n, "idle-stop")), "'idle-stop' of %s would end what 'pin' keeps; remove one", r->of);
        return 0;
    }
    for (size_t i = 0; i < BASE_COUNT(keys); i++)
        if (yaml_get(n, keys[i]))
            return fleet_refuse_at(r, fleet_key_pos_of(yaml_get(n, keys[i])), "'%s' of %s has no effect without 'start: on-demand'; add that or remove this", keys[i], r->of);
    return 0;
}

/* All on demand: a service that is always there leaves nothing to decide. */
int fleet_rules_group(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index)
{
    (void)index;
    const struct fleet_group *g = part;
    for (size_t i = 0; i < g->n_services; i++)
        if (g->services[i]->start != FLEET_ON_DEMAND)
            return fleet_refuse(r, yaml_get(n, "services"), "%s names service '%s' at line %u, which is always up; groups are of services with 'start: on-demand'", r->of,
                                g->services[i]->name, g->services[i]->pos.line);
    return 0;
}

/* Flags in `args` and names in `env` that say again, or against, what berth says to the engine: one of the two would lose without a word. */
static int rules_flags(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct yaml_node *args = yaml_get(n, "args");
    for (const struct yaml_node *c = args && r->opt->flag_taken ? args->first : NULL; c; c = c->next) {
        const char *flag = NULL, *instead = r->opt->flag_taken(s->runtime->engine, c->text, &flag);
        if (instead)
            return fleet_refuse(r, c, "'args' of %s must not hold '%s'; %s", r->of, flag, instead);
    }
    /* llama-server takes every flag from the environment too. */
    const struct yaml_node *env = yaml_get(n, "env");
    bool llama = strcmp(s->runtime->engine, "llama.cpp") == 0;
    for (const struct yaml_node *c = env && llama ? env->first : NULL; c; c = c->next)
        if (str_starts(c->key, STR("LLAMA_ARG_")) || str_eq_c(c->key, "LLAMA_API_KEY"))
            return fleet_refuse_at(r, fleet_key_pos_of(c), "'env' of %s must not set '%s', which is an engine flag; use a key or 'args'", r->of,
                                   fleet_show(r, c->key));
    return 0;
}

/* An address with a port, or a socket of this machine. */
static int rules_place(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const char *socket = fleet_service_socket(s);
    const struct yaml_node *port = yaml_get(n, "port"), *bind = yaml_get(n, "bind");
    if (!socket)
        return port ? 0 : fleet_refuse_at(r, s->pos, "%s has no 'port'; add it, for example 'port: 7770'", r->of);
    if (port)
        return fleet_refuse(r, port, "%s has a 'port' and listens at a socket; leave one of them out", r->of);
    if (s->host->ssh)
        return fleet_refuse(r, bind, "'bind' of %s is a socket, which cannot be reached on host '%s'; use a port", r->of, s->host->name);
    if (s->unit != FLEET_CHILD)
        return fleet_refuse(r, bind, "'bind' of %s is a socket, which goes with 'unit: child' only; use a port", r->of);
    if (strcmp(s->runtime->engine, "llama.cpp") == 0 && !str_ends(str_of(socket), STR(".sock")))
        return fleet_refuse(r, bind, "'bind' of %s must end with '.sock', by which llama.cpp knows a socket, not '%s'", r->of, fleet_show(r, str_of(s->bind)));
    return 0;
}

int fleet_rules_service(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index)
{
    (void)index;
    struct fleet_service *s = part;
    if (!s->host) {
        if (r->fleet->n_hosts != 1)
            return fleet_refuse_at(r, s->pos, "%s has no 'host'; name one of the %zu hosts", r->of, r->fleet->n_hosts);
        s->host = r->fleet->hosts;
    }
    bool generic = strcmp(s->runtime->engine, "generic") == 0;
    int rc = rules_place(r, n, s);
    if (rc == 0)
        rc = rules_unit(r, n, s);
    if (rc == 0)
        rc = fleet_check_credentials(r, s);
    if (rc == 0)
        rc = fleet_rules_key(r, n, s);
    if (rc == 0)
        rc = generic ? rules_generic(r, n, s) : rules_known_engine(r, n, s);
    if (rc == 0)
        rc = rules_numbers(r, n, s);
    if (rc == 0)
        rc = rules_floor(r, n, s);
    if (rc == 0)
        rc = rules_start(r, n, s);
    if (rc == 0)
        rc = rules_serves(r, n, s);
    if (rc == 0 && strcmp(s->runtime->engine, "llama.cpp") == 0) {
        rc = rules_kv(r, n, s);
        if (rc == 0)
            rc = rules_speculative(r, n, s);
    }
    return rc < 0 ? rc : rules_flags(r, n, s);
}
