/* SPDX-License-Identifier: MIT
 *
 * Podman, as it sees itself: `podman info --format json`. Only asked when it is here; its absence is a fault only for a fleet with quadlets on this machine.
 */
#include "doctor_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <string.h>

#define INFO_MAX ((size_t)1 << 20)

/* ---- parser ------------------------------------------------------------------------------------------------------------- */

static void take(json_val obj, const char *key, char *out, size_t size)
{
    base_autobuf struct buf shown = BUF_INIT(1024);
    buf_add_printable(&shown, json_get_str(obj, key, ""), size - 4);
    if (buf_status(&shown) == 0 && shown.len && shown.len < size)
        memcpy(out, shown.ptr, shown.len + 1);
}

static bool lists(json_val list, const char *word)
{
    struct str s;
    for (size_t i = 0; i < json_count(list); i++)
        if (json_str(json_at(list, i), &s) && str_eq_c(s, word))
            return true;
    return false;
}

int podman_parse(struct str text, struct podman_facts *ret, struct err *err)
{
    struct json *j = NULL;
    struct podman_facts f = {.rootless = false};
    int r = json_parse(text, &j, err);
    if (r < 0)
        return r;
    json_val root = json_root(j), host = json_get(root, "host"), store = json_get(root, "store"), map = json_get(json_get(host, "idMappings"), "uidmap");
    take(json_get(root, "version"), "Version", f.version, sizeof f.version);
    take(host, "cgroupVersion", f.cgroups, sizeof f.cgroups);
    take(host, "cgroupManager", f.manager, sizeof f.manager);
    take(json_get(host, "ociRuntime"), "name", f.runtime, sizeof f.runtime);
    take(store, "graphDriverName", f.driver, sizeof f.driver);
    f.rootless = json_get_bool(json_get(host, "security"), "rootless");
    f.socket = json_get_bool(json_get(host, "remoteSocket"), "exists");
    json_val controllers = json_get(host, "cgroupControllers");
    f.cpu = lists(controllers, "cpu");
    f.memory = lists(controllers, "memory");
    f.pids = lists(controllers, "pids");
    for (size_t i = 0; i < json_count(map); i++) {
        uint64_t sum;
        if (size_add(f.ids, json_get_u64(json_at(map, i), "size"), &sum))
            f.ids = sum;
    }
    json_free(j);
    if (!*f.version)
        return err_set(err, -EBADMSG, "it tells no version");
    *ret = f;
    return 0;
}

/* ---- judges --------------------------------------------------------------------------------------------------------------- */

/* Older than 4.4: no quadlets. */
static bool too_old(const char *version)
{
    struct str rest = str_of(version), major = str_split(&rest, '.'), minor = str_split(&rest, '.');
    uint64_t a = 0, b = 0;
    if (str_to_u64(major, &a) < 0 || str_to_u64(minor, &b) < 0)
        return false;
    return a < 4 || (a == 4 && b < 4);
}

static void judge(struct doctor *d, const struct podman_facts *f, enum doctor_level fault)
{
    size_t before = d->n;
    if (too_old(f->version))
        doctor_say(d, fault, "podman", f->version, "services with 'unit: quadlet' cannot be deployed", "install 4.4 or newer", "this version has no quadlets");
    if (*f->cgroups && strcmp(f->cgroups, "v2") != 0)
        doctor_say(d, fault, "podman", "cgroups", "quadlets need version 2", "systemd.unified_cgroup_hierarchy=1 on the kernel command line", "it runs with cgroups %s", f->cgroups);
    if (*f->manager && strcmp(f->manager, "systemd") != 0)
        doctor_say(d, DOCTOR_WARN, "podman", "cgroups", "systemd does not see what containers take", "log in with a session of systemd (XDG_RUNTIME_DIR), or set cgroup_manager in containers.conf", "cgroups are managed by '%s'", f->manager);
    if (f->rootless && f->ids < DOCTOR_IDS_WANTED)
        doctor_say(d, fault, "podman", "ids", "images with more than one account do not start", "ranges in /etc/subuid and /etc/subgid, then podman system migrate", "rootless containers have %llu ids, images need %d", (unsigned long long)f->ids, DOCTOR_IDS_WANTED);
    if (f->rootless && (!f->memory || !f->pids))
        doctor_say(d, DOCTOR_WARN, "podman", "cgroups", "limits of containers are refused or not kept", "a drop-in for user@.service with [Service] Delegate=cpu cpuset io memory pids", "rootless containers have no controller for %s", f->memory ? "pids" : "memory");
    if (strcmp(f->driver, "vfs") == 0)
        doctor_say(d, DOCTOR_WARN, "podman", "storage", "each container is a whole copy of its image, of many GiB", "storage driver overlay (fuse-overlayfs on old kernels), then podman system reset", "images are kept with the driver 'vfs'");
    if (d->n == before)
        doctor_say(d, DOCTOR_OK, "podman", f->version, "", "", "%s, cgroups %s by %s, %s, %s%s", f->rootless ? "rootless" : "as root", *f->cgroups ? f->cgroups : "unknown", *f->manager ? f->manager : "unknown", *f->driver ? f->driver : "unknown storage",
                   *f->runtime ? f->runtime : "unknown runtime", f->rootless && f->socket ? ", user socket" : "");
}

/* The description of NVIDIA's devices for containers names the driver's libraries with their version, and is not made anew by itself. */
static void judge_cdi(struct doctor *d, enum doctor_level fault)
{
    static const char *const files[] = {"etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.yaml", "run/cdi/nvidia.yaml"};
    const char *version = NULL;
    bool any = false;
    for (size_t i = 0; i < d->r->hw.n_devices; i++)
        if (d->r->hw.devices[i].vendor == HW_NVIDIA && strcmp(d->r->hw.devices[i].driver, "nvidia") == 0)
            version = d->r->hw.devices[i].driver_version;
    if (!version || !*version)
        return;
    for (size_t i = 0; i < BASE_COUNT(files); i++) {
        base_autobuf struct buf b = BUF_INIT((size_t)4 << 20);
        struct str text = doctor_file(d, files[i], &b);
        if (!text.len)
            continue;
        any = true;
        if (str_find(text, str_of(version)) < 0)
            doctor_say(d, fault, "podman", doctor_text(d, "/%s", files[i]), "containers start without the card, or do not start", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "it was made for another driver than %s", version);
    }
    if (!any)
        doctor_say(d, fault, "podman", "/etc/cdi", "containers cannot be given the card", "install nvidia-container-toolkit; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "NVIDIA's cards are not described for containers");
}

void podman_judge(struct doctor *d)
{
    static const char *const argv[] = {"podman", "info", "--format", "json", NULL};
    base_autobuf struct buf b = BUF_INIT(INFO_MAX);
    struct podman_facts f;
    struct err err;
    enum doctor_level fault = doctor_has_unit(d, FLEET_QUADLET) ? DOCTOR_BAD : DOCTOR_NOTE;
    if (!d->live)
        return;
    int r = doctor_run(argv, &b, &err);
    if (r == -ENOENT) {
        if (fault == DOCTOR_BAD)
            doctor_say(d, fault, "podman", "here", "services with 'unit: quadlet' need it", "install podman 4.4 or newer", "it is not here");
        return;
    }
    if (r == 0)
        r = podman_parse(buf_str(&b), &f, &err);
    if (r < 0) {
        doctor_say(d, fault, "podman", "here", "no container starts", "run 'podman info' as this account", "it does not work: %s", doctor_text(d, "%s", err.text));
        return;
    }
    judge(d, &f, fault);
    judge_cdi(d, fault);
}
