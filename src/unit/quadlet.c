/* SPDX-License-Identifier: MIT
 *
 * A .container file for Podman's generator. The container has the host's network, so that an engine listens exactly where the fleet file says, on loopback too, and nothing is published; it has a read-only root, no
 * capabilities, and of the host what it reads and its devices. The image is named by digest and never looked up at start.
 *
 * Its health check is a file: a command in HealthCmd= goes through systemd's, Podman's and the shell's quotes.
 */
#include <errno.h>

#include "unit_int.h"

#define HEALTH_PATH "/berth-health"

/* Writes a key that a podman may lack. needed: the service is not what it was declared to be without it. */
static int key(const struct unit_input *in, struct buf *out, const char *name, const char *value, bool needed, struct err *err)
{
    if (unit_podman_knows(in->podman, "Container", name))
        unit_key(out, name, value);
    else if (needed)
        return err_set(err, -ENOTSUP, "podman %u.%u has no quadlet key '%s', which service '%s' needs: install a newer podman", in->podman.major, in->podman.minor, name, in->service->name);
    return 0;
}

/* A file or folder of the host, read-only at a place inside. */
static int volume(const struct unit_input *in, const char *path, const char *inside, struct buf *out, struct err *err)
{
    base_autobuf struct buf word = BUF_INIT(128u << 10);
    if (strchr(path, ':') || strchr(path, ','))
        return err_set(err, -EINVAL, "'%s' cannot be shown to service '%s': a volume's name has no ':' or ','", path, in->service->name);
    buf_addf(&word, "%s:%s:ro", path, inside);
    if (buf_status(&word) < 0)
        return err_nomem(err);
    return unit_raw(out, "Volume", word.ptr, true, err);
}

/* The generator stops at an empty word and loses what follows, and writes a ';' without quotes, which ends systemd's command there. */
static int exec(const struct unit_input *in, struct buf *out, struct err *err)
{
    for (size_t i = 0; i < in->n_argv; i++)
        if (!*in->argv[i] || strcmp(in->argv[i], ";") == 0)
            return err_set(err, -EINVAL, "word %zu of the command of service '%s' is %s, which Podman's generator does not hand on: write it otherwise, or make the service 'unit: systemd'", i + 1, in->service->name, *in->argv[i] ? "';' alone" : "empty");
    return in->n_argv ? unit_words(out, "Exec", in->argv, in->n_argv, true, err) : 0;
}

static int volumes(const struct unit_input *in, struct buf *out, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < in->n_reads; i++)
        r = volume(in, in->reads[i], in->reads[i], out, err);
    return r;
}

/* Each is one file that the container can read and nobody else is shown. */
static int secrets(const struct unit_input *in, struct buf *out, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < in->n_credentials; i++) {
        base_autobuf struct buf inside = BUF_INIT(4096);
        buf_addf(&inside, UNIT_CREDENTIALS "/%s", in->credentials[i].name);
        r = buf_status(&inside) < 0 ? err_nomem(err) : volume(in, in->credentials[i].path, inside.ptr, out, err);
    }
    return r;
}

/* The folder of the unit's own files, as quadlets name it: beside the unit. */
static int health(const struct unit_input *in, struct buf *out, struct err *err)
{
    char base[UNIT_NAME_MAX];
    if (!in->service->health && !in->service->model)
        return 0;
    buf_addf(out, "Volume=./%s.health:" HEALTH_PATH ":ro\n", unit_base(in->fleet, in->service->name, base));
    unit_key(out, "HealthCmd", HEALTH_PATH);
    unit_key(out, "HealthInterval", "30s");
    unit_key(out, "HealthTimeout", "10s");
    unit_key(out, "HealthRetries", "3");
    buf_addf(out, "HealthStartPeriod=%llus\n", (unsigned long long)((in->start_limit_ms + 999) / 1000));
    /* an engine at work may be slow to answer: a failed check is shown, and nothing is killed for it */
    return key(in, out, "HealthOnFailure", "none", false, err);
}

static bool locks_memory(const struct unit_input *in)
{
    for (size_t i = 0; i < in->n_argv; i++)
        if (strcmp(in->argv[i], "--mlock") == 0)
            return true;
    return false;
}

static int container(const struct unit_input *in, struct buf *out, struct err *err)
{
    char base[UNIT_NAME_MAX];
    unit_base(in->fleet, in->service->name, base);
    if (!in->image || !*in->image)
        return err_set(err, -EINVAL, "service '%s' has no image: its runtime's source must be 'oci:IMAGE@sha256:DIGEST'", in->service->name);
    int r = unit_words(out, "Image", &in->image, 1, false, err);
    unit_key(out, "ContainerName", base);
    if (r == 0)
        r = key(in, out, "Pull", "never", false, err);
    if (r == 0)
        r = exec(in, out, err);
    unit_key(out, "Network", "host");
    unit_key(out, "ReadOnly", "true");
    unit_key(out, "NoNewPrivileges", "true");
    unit_key(out, "DropCapability", "all");
    unit_key(out, "Environment", "HOME=/cache XDG_CACHE_HOME=/cache");
    buf_addf(out, "Volume=%s-cache:/cache\n", base);
    /* the generator makes arguments of a command of them, where systemd looks for variables */
    if (r == 0)
        r = unit_each(out, "Environment", in->env, in->n_env, true, err);
    if (r == 0)
        r = volumes(in, out, err);
    if (r == 0)
        r = secrets(in, out, err);
    if (r == 0)
        r = unit_each(out, "AddDevice", in->devices, in->n_devices, true, err);
    if (r == 0 && in->n_devices) {
        /* labels would keep a container from a card's node */
        r = key(in, out, "SecurityLabelDisable", "true", false, err);
        if (r == 0)
            r = key(in, out, "GroupAdd", "keep-groups", in->service->host->scope == FLEET_USER, err);
    }
    /* only when it is asked for: where an account may not raise its limit, the container would not start */
    if (r == 0 && locks_memory(in))
        r = key(in, out, "Ulimit", "memlock=-1:-1", false, err);
    return r == 0 ? health(in, out, err) : r;
}

int unit_quadlet(const struct unit_input *in, struct buf *out, struct err *err)
{
    if (unit_before(in->podman, 4, 4))
        return err_set(err, -ENOTSUP, "podman %u.%u has no quadlets, which came with 4.4: service '%s' can be 'unit: systemd'", in->podman.major, in->podman.minor, in->service->name);
    int r = unit_head(in, out, err);
    buf_add_c(out, "\n[Container]\n");
    if (r == 0)
        r = container(in, out, err);
    buf_add_c(out, "\n[Service]\n");
    if (r == 0 && in->n_stop)
        r = unit_words(out, "ExecStop", in->stop, in->n_stop, true, err);
    unit_service(in, out);
    buf_addf(out, "TimeoutStartSec=%llu\n", (unsigned long long)((in->start_limit_ms + 999) / 1000));
    unit_install(in, out);
    /* a unit with a key too many would vanish without a word */
    return r == 0 && buf_status(out) == 0 ? unit_podman_check(buf_str(out), in->podman, err) : r;
}

int unit_render_health(const struct unit_input *in, struct buf *out, struct err *err)
{
    const char *path = in->service->health ? in->service->health : "/health";
    /* both come from the fleet file, which allows nothing else here; a unit must not depend on that */
    for (const char *p = path; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || strchr("/-_.~", *p)))
            return err_set(err, -EINVAL, "health path '%s' of service '%s' cannot be asked from a script: use letters, digits and '/-_.~'", path, in->service->name);
    bool v6 = strchr(in->service->bind, ':') != NULL;
    buf_addf(out, "#!/bin/sh\n# Whether the engine answers: 0 when it does.\nexec curl -sf -o /dev/null -m 8 'http://%s%s%s:%u%s'\n", v6 ? "[" : "", in->service->bind, v6 ? "]" : "", in->service->port, path);
    int r = buf_status(out);
    return r < 0 ? err_sys(err, r, "the health check of service '%s' cannot be written", in->service->name) : 0;
}
