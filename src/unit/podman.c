/* SPDX-License-Identifier: MIT
 *
 * Which quadlet keys which podman knows. A key that a generator does not know makes the whole unit vanish, with a line in the journal and nothing else, so a unit is held against this table before it is written. Keys
 * and versions: podman-systemd.unit(5) of 5.8; what 5.4 lacks was found by giving each documented key to its generator.
 */
#include <errno.h>

#include "unit_int.h"

/* since: the version that brought it, as major * 100 + minor; 404 for what came with quadlets or before anything that runs them here. */
struct key {
    const char *name;
    unsigned since;
};

#define FIRST 404
#define LATER 505 /* what 5.4 lacks */

static const struct key container[] = {
    {"AddCapability", FIRST}, {"AddDevice", FIRST}, {"AddHost", FIRST}, {"Annotation", FIRST}, {"AppArmor", LATER}, {"AutoUpdate", FIRST}, {"CgroupsMode", FIRST}, {"ContainerName", FIRST}, {"ContainersConfModule", FIRST},
    {"DNS", FIRST}, {"DNSOption", FIRST}, {"DNSSearch", FIRST}, {"DropCapability", FIRST}, {"Entrypoint", FIRST}, {"Environment", FIRST}, {"EnvironmentFile", FIRST}, {"EnvironmentHost", FIRST}, {"Exec", FIRST},
    {"ExposeHostPort", FIRST}, {"GIDMap", FIRST}, {"GlobalArgs", FIRST}, {"Group", FIRST}, {"GroupAdd", FIRST}, {"HealthCmd", FIRST}, {"HealthInterval", FIRST}, {"HealthLogDestination", FIRST}, {"HealthMaxLogCount", FIRST},
    {"HealthMaxLogSize", FIRST}, {"HealthOnFailure", FIRST}, {"HealthRetries", FIRST}, {"HealthStartPeriod", FIRST}, {"HealthStartupCmd", FIRST}, {"HealthStartupInterval", FIRST}, {"HealthStartupRetries", FIRST},
    {"HealthStartupSuccess", FIRST}, {"HealthStartupTimeout", FIRST}, {"HealthTimeout", FIRST}, {"HostName", FIRST}, {"HttpProxy", LATER}, {"IP", FIRST}, {"IP6", FIRST}, {"Image", FIRST}, {"Label", FIRST}, {"LogDriver", FIRST},
    {"LogOpt", FIRST}, {"Mask", FIRST}, {"Memory", LATER}, {"Mount", FIRST}, {"Network", FIRST}, {"NetworkAlias", FIRST}, {"NoNewPrivileges", FIRST}, {"Notify", FIRST}, {"PidsLimit", FIRST}, {"Pod", FIRST}, {"PodmanArgs", FIRST},
    {"PublishPort", FIRST}, {"Pull", FIRST}, {"ReadOnly", FIRST}, {"ReadOnlyTmpfs", FIRST}, {"ReloadCmd", LATER}, {"ReloadSignal", LATER}, {"Retry", LATER}, {"RetryDelay", LATER}, {"Rootfs", FIRST}, {"RunInit", FIRST},
    {"SeccompProfile", FIRST}, {"Secret", FIRST}, {"SecurityLabelDisable", FIRST}, {"SecurityLabelFileType", FIRST}, {"SecurityLabelLevel", FIRST}, {"SecurityLabelNested", FIRST}, {"SecurityLabelType", FIRST}, {"ServiceName", FIRST},
    {"ShmSize", FIRST}, {"StartWithPod", FIRST}, {"StopSignal", FIRST}, {"StopTimeout", FIRST}, {"SubGIDMap", FIRST}, {"SubUIDMap", FIRST}, {"Sysctl", FIRST}, {"Timezone", FIRST}, {"Tmpfs", FIRST}, {"UIDMap", FIRST},
    {"Ulimit", FIRST}, {"Unmask", FIRST}, {"User", FIRST}, {"UserNS", FIRST}, {"Volume", FIRST}, {"WorkingDir", FIRST},
};

bool unit_podman_knows(struct unit_version podman, const char *section, const char *key)
{
    if (!str_eq_c(str_of(section), "Container"))
        return false;
    for (size_t i = 0; i < BASE_COUNT(container); i++)
        if (str_eq_c(str_of(key), container[i].name))
            return !unit_before(podman, container[i].since / 100, container[i].since % 100);
    return false;
}

/* A section's line "[Name]". */
static bool section_of(struct str line, struct str *ret)
{
    if (line.len < 2 || line.ptr[0] != '[' || line.ptr[line.len - 1] != ']')
        return false;
    *ret = (struct str){line.ptr + 1, line.len - 2};
    return true;
}

int unit_podman_check(struct str text, struct unit_version podman, struct err *err)
{
    struct str section = {0};
    bool goes_on = false;
    for (unsigned n = 1; text.ptr; n++) {
        struct str line = str_trim(str_split(&text, '\n'));
        bool part = goes_on;
        goes_on = line.len && line.ptr[line.len - 1] == '\\';
        if (part || !line.len || line.ptr[0] == '#' || line.ptr[0] == ';' || section_of(line, &section))
            continue;
        struct str key = str_trim(str_split(&line, '='));
        if (!section.len || !line.ptr || !key.len)
            return err_set(err, -EBADMSG, "line %u is no unit text", n);
        if (!str_eq_c(section, "Container"))
            continue;
        char name[64];
        if (key.len < sizeof name) {
            memcpy(name, key.ptr, key.len);
            name[key.len] = '\0';
            if (unit_podman_knows(podman, "Container", name))
                continue;
        }
        return err_set(err, -ENOTSUP, "line %u: podman %u.%u does not know key '%.60s' of [Container]: install a newer podman", n, podman.major, podman.minor, key.len < sizeof name ? name : "...");
    }
    return 0;
}
