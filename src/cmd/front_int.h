/* SPDX-License-Identifier: MIT
 *
 * The front door: the fleet's router that is up on this machine, asked as clients ask, at its own address, by the endpoints' names, with a key that berth has for itself. A router with TLS must show the certificate that the fleet
 * file names. One question for each name; what it answers is judged as an engine's own chat.
 */
#pragma once

#include <conf/conf.h>
#include <fleet/fleet.h>
#include <net/net.h>
#include <os/os.h>

#define FRONT_NAMES_MAX 8u /* of an endpoint that are asked: its own and its first aliases */

struct front_door {
    struct json *status; /* the router's own, as `berth status` has it */
    struct net_addr addr;
    struct net_tls *tls; /* NULL: plain */
    char key[256];       /* "": it wants none */
};
/* -ENOENT: no router is up here; -EACCES and others: it, or the certificate, cannot be read. Release with front_door_close also after a failure. */
int front_door_open(const struct os_dirs *dirs, const struct fleet *f, struct front_door *ret, struct err *err) BASE_MUST_USE;
void front_door_close(struct front_door *d);
/* Name i of an endpoint: its own, then its aliases; NULL beyond those that are asked. */
const char *front_door_name(const struct fleet_endpoint *e, size_t i);
/* Whether the router has that name for the service; one that it has not read yet is not its to answer. */
bool front_door_knows(const struct front_door *d, const char *service, const struct fleet_endpoint *e, const char *name);
/* Asks by each of these n names, until one is not answered: -EBADMSG, -EIO with the name and what is wrong. s: a service of them all. */
int front_door_ask(const struct front_door *d, const struct fleet_service *s, const char *const *names, size_t n, struct err *err) BASE_MUST_USE;
