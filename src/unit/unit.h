/* SPDX-License-Identifier: MIT
 *
 * unit: a service as text that systemd keeps running: a .service file for an engine of the host's own, or a Podman quadlet (.container) for one in an image. Pure: text in, text out; what the machine
 * has (paths, groups, versions) is told. The keys and their reasons are in systemd.c and quadlet.c.
 *
 * A unit that berth made begins with two comment lines; the second one says whose it is, so that a file which somebody else wrote under one of our names is known from ours.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>

#define UNIT_TEXT_MAX (1u << 20)
#define UNIT_NAME_MAX (2 * FLEET_NAME_MAX + 32)
#define UNIT_DIGEST 12 /* characters of a unit's digest that are shown */

enum unit_form { UNIT_SERVICE, UNIT_CONTAINER };

/* Version of a program, as it names itself; all 0: unknown. */
struct unit_version {
    unsigned major, minor;
};
/* First "MAJOR.MINOR" or "MAJOR" in a text such as "systemd 257 (257.13-1)" or "podman version 5.4.2". -EBADMSG. */
int unit_version_parse(struct str text, struct unit_version *ret) BASE_MUST_USE;

/* A secret that the engine reads from a file: systemd hands it over, nobody else can read it there. */
struct unit_credential {
    const char *name; /* [a-z0-9-]+ */
    const char *path; /* absolute, on the machine */
};

#define UNIT_CREDENTIALS "/run/credentials" /* in a container: folder of its credentials */

/* All that the text of one unit comes from. Lists may be NULL with n 0. Paths are absolute. */
struct unit_input {
    const char *fleet;                   /* its name */
    const struct fleet_service *service;
    enum unit_form form;
    const char *const *argv;             /* service: program first; container: what the image's entry point gets */
    size_t n_argv;
    const char *const *env;              /* "NAME=value": the whole environment beside what a unit sets itself (HOME, XDG_CACHE_HOME) */
    size_t n_env;
    const char *const *reads;            /* what it reads: payloads, template, the runtime's tree */
    size_t n_reads;
    const struct unit_credential *credentials;
    size_t n_credentials;
    const char *const *groups;           /* of the machine that own the devices: "render", "video" */
    size_t n_groups;
    const char *const *devices;          /* container: nodes that it needs: "/dev/kfd", "/dev/dri" */
    size_t n_devices;
    const char *const *stop;             /* argv that drains the service before systemd ends it; NULL: none */
    size_t n_stop;
    const char *image;                   /* container: "example/llama@sha256:..." */
    uint64_t start_limit_ms, stop_limit_ms;
    struct unit_version systemd, podman; /* of the machine: keys that it does not know are left out when the unit works without them */
};

/* "berth-FLEET-SERVICE": without the ending; also the container's name and that of its cache folder. */
const char *unit_base(const char *fleet, const char *service, char out[UNIT_NAME_MAX]);
/* "berth-FLEET-SERVICE.service" or ".container", as the file is called. */
const char *unit_file(const char *fleet, const char *service, enum unit_form form, char out[UNIT_NAME_MAX]);
/* What systemctl is asked about: always "berth-FLEET-SERVICE.service". */
const char *unit_name(const char *fleet, const char *service, char out[UNIT_NAME_MAX]);

/* The text of the unit. -EINVAL (a word that no unit can hold: a NUL or broken UTF-8), -ENOTSUP (this podman has no quadlets, or lacks a key without which the service would not be what it is declared to be), -E2BIG. */
int unit_render(const struct unit_input *in, struct buf *out, struct err *err) BASE_MUST_USE;
/* The fleet's router as a unit: berth's own, which says when it is ready and hands itself over to another build. */
struct unit_router {
    const char *fleet;
    enum fleet_scope scope;
    const char *const *start, *const *reload; /* argv of each, program first; NULL-terminated */
};
int unit_render_router(const struct unit_router *in, struct buf *out, struct err *err) BASE_MUST_USE;
/* Container only: the file of its health check, which the container runs as a program; a command in the unit's text would go through three sets of quotes. */
int unit_render_health(const struct unit_input *in, struct buf *out, struct err *err) BASE_MUST_USE;

/* One word of ExecStart=, Exec= or Environment=: in double quotes when it needs them; '\\', '"', '%' and control characters escaped, and '$' too when commands is true (in a command systemd replaces variables). "{credential:NAME}" becomes where systemd puts that one. -EINVAL for what is not UTF-8. */
int unit_quote(struct str word, bool commands, struct buf *out) BASE_MUST_USE;

/* Whose a unit's text is. False: not berth's. The views are into text. */
struct unit_owner {
    struct str fleet, service, digest;
};
bool unit_owner_parse(struct str text, struct unit_owner *ret) BASE_MUST_USE;

/* Whether this podman's quadlets know a key: section "Container", key "Memory". False for a section or key that no version has. */
bool unit_podman_knows(struct unit_version podman, const char *section, const char *key);
/* The first key of a quadlet's text that this podman does not know: 0 when it knows all; -ENOTSUP with line, section and key; -EBADMSG for what is no unit text. */
int unit_podman_check(struct str text, struct unit_version podman, struct err *err) BASE_MUST_USE;
