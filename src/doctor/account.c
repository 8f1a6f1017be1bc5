/* SPDX-License-Identifier: MIT
 *
 * What keeps services running without a person: systemd, units that are enabled, and for an account without root its ranges of ids, its cgroup and its lingering.
 */
#include "doctor_int.h"

#include <pwd.h>
#include <string.h>
#include <unistd.h>

/* Lines "NAME:FIRST:COUNT", the account by name or number. */
uint64_t account_range(struct str text, const char *user, uid_t uid)
{
    uint64_t most = 0;
    char number[STR_U64];
    struct str by_number = str_of_u64(uid, number);
    while (text.ptr) {
        struct str line = str_trim(str_split(&text, '\n')), name = str_split(&line, ':'), first = str_split(&line, ':');
        uint64_t from = 0, count = 0;
        if ((str_eq_c(name, user) || str_eq(name, by_number)) && str_to_u64(first, &from) == 0 && str_to_u64(line, &count) == 0 && from <= UINT32_MAX && count <= UINT32_MAX && count > most)
            most = count;
    }
    return most;
}

static bool user_scope(const struct doctor *d)
{
    return d->o->host ? d->o->host->scope == FLEET_USER : d->uid != 0;
}

/* ---- an account without root ------------------------------------------------------------------------------------------- */

static void judge_ids(struct doctor *d, const char *user)
{
    static const char *const files[] = {"etc/subuid", "etc/subgid"};
    for (size_t i = 0; i < BASE_COUNT(files); i++) {
        base_autobuf struct buf b = BUF_INIT(DOCTOR_FILE_MAX);
        uint64_t n = account_range(doctor_file(d, files[i], &b), user, d->uid);
        if (n < DOCTOR_IDS_WANTED)
            doctor_say(d, doctor_has_unit(d, FLEET_QUADLET) ? DOCTOR_BAD : DOCTOR_NOTE, "podman", doctor_text(d, "/%s", files[i]), "rootless containers with more than one account inside do not start",
                       doctor_text(d, "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s, then podman system migrate", user), "'%s' has %llu ids there, images need %d", user, (unsigned long long)n, DOCTOR_IDS_WANTED);
    }
}

static void judge_delegation(struct doctor *d)
{
    static const char *const wanted[] = {"memory", "pids", "cpu"};
    base_autobuf struct buf b = BUF_INIT(4096);
    const char *path = doctor_text(d, "sys/fs/cgroup/user.slice/user-%u.slice/user@%u.service/cgroup.controllers", (unsigned)d->uid, (unsigned)d->uid);
    struct str all = doctor_file(d, path, &b);
    if (!all.len)
        return; /* no user manager at this moment, or no cgroups of version 2: said elsewhere */
    for (size_t i = 0; i < BASE_COUNT(wanted); i++) {
        struct str rest = all;
        bool has = false;
        while (rest.ptr) {
            struct str word = str_split(&rest, ' ');
            has = has || str_eq_c(word, wanted[i]);
        }
        if (!has)
            doctor_say(d, DOCTOR_WARN, "cgroup", doctor_text(d, "user@%u", (unsigned)d->uid), "limits of user units and rootless containers are not kept", "a drop-in for user@.service with [Service] Delegate=cpu cpuset io memory pids",
                       "the controller '%s' is not delegated to this account", wanted[i]);
    }
}

static void judge_linger(struct doctor *d, const char *user)
{
    if (doctor_exists(d, doctor_text(d, "var/lib/systemd/linger/%s", user)))
        doctor_say(d, DOCTOR_OK, "boot", "here", "", "", "units of '%s' start at boot and stay after logout (linger)", user);
    else
        doctor_say(d, doctor_has_unit(d, FLEET_SYSTEMD) || doctor_has_unit(d, FLEET_QUADLET) ? DOCTOR_BAD : DOCTOR_NOTE, "boot", "here", "its units end at logout and do not come back at boot", doctor_text(d, "loginctl enable-linger %s", user), "'%s' does not linger", user);
}

static void judge_user(struct doctor *d)
{
    char room[4096];
    struct passwd entry, *found = NULL;
    if (!d->live || d->uid == 0 || getpwuid_r(d->uid, &entry, room, sizeof room, &found) != 0 || !found)
        return;
    const char *user = doctor_text(d, "%s", found->pw_name);
    if (os_name_valid(str_of(user)))
        judge_linger(d, user);
    base_autobuf struct buf podman = BUF_INIT(4096);
    if (doctor_has_unit(d, FLEET_QUADLET) || os_find_program("podman", &podman, NULL) == 0)
        judge_ids(d, user);
    judge_delegation(d);
}

/* ---- units -------------------------------------------------------------------------------------------------------------- */

/* Deployed ones: their file is there, and systemd starts them at boot. A quadlet's file says so by itself. */
static void judge_enabled(struct doctor *d)
{
    for (size_t i = 0; d->o->fleet && i < d->o->fleet->n_services; i++) {
        const struct fleet_service *s = &d->o->fleet->services[i];
        if (s->host != d->o->host || s->unit != FLEET_SYSTEMD || user_scope(d))
            continue;
        const char *unit = doctor_text(d, "berth-%s-%s.service", d->o->fleet->name, s->name);
        if (doctor_exists(d, doctor_text(d, "etc/systemd/system/%s", unit)) && !doctor_exists(d, doctor_text(d, "etc/systemd/system/multi-user.target.wants/%s", unit)))
            doctor_say(d, DOCTOR_BAD, "boot", unit, "it does not come back at boot", doctor_text(d, "systemctl enable %s, or berth deploy", unit), "is installed and not enabled");
    }
}

void account_judge(struct doctor *d)
{
    bool units = doctor_has_unit(d, FLEET_SYSTEMD) || doctor_has_unit(d, FLEET_QUADLET);
    if (d->live && !doctor_exists(d, "run/systemd/system"))
        doctor_say(d, units ? DOCTOR_BAD : DOCTOR_NOTE, "boot", "here", "services with 'unit: systemd' or 'quadlet' cannot be deployed here; 'berth up' works", "", "systemd does not run this machine");
    judge_enabled(d);
    judge_user(d);
}
