/* SPDX-License-Identifier: MIT
 *
 * client: the files that tell programs what they may ask of a fleet: written from what the fleet is, and read back for what they claim, whoever wrote them. Pure: text in, text out. Formats are those of opencode
 * (opencode.json), Continue (config.yaml), Aider (.aider.model.metadata.json), LiteLLM (config.yaml), and one of berth's own in JSON.
 *
 * No file holds a key: the name of the variable that does is written in the program's own way.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>

#define CLIENT_TEXT_MAX ((size_t)1 << 20) /* bytes of a file */
#define CLIENT_MODELS_MAX 4096            /* in it; gateways list hundreds */

/* One endpoint as a client is told of it. */
struct client_model {
    const char *name;
    uint64_t window; /* tokens of a slot */
    uint64_t output; /* most tokens of an answer */
    bool image, audio;
    const struct fleet_effort *efforts; /* what it may ask for */
    size_t n_efforts;
};
struct client_plan {
    const char *fleet;
    const char *url;     /* with the path of the API: "http://127.0.0.1:8080/v1" */
    const char *key_env; /* NULL: no key */
    uint32_t compact;    /* percent of the window */
    const struct client_model *models;
    size_t n_models;
};
/* The file of a format. */
int client_render(enum fleet_format format, const struct client_plan *p, struct buf *out, struct err *err) BASE_MUST_USE;

/* What a file says of one model; 0: it does not say. */
struct client_claim {
    struct str name, url;      /* url empty: the format has none */
    uint64_t window, output;
    bool image, audio;
    const struct str *efforts; /* words that it sends */
    size_t n_efforts;
    unsigned line;
};
/* The claims of a text in the file's order, in arena a. -EBADMSG: it is not of that format, with "LINE:COLUMN: " in front where that is known; -E2BIG; -ENOMEM. */
int client_read(enum fleet_format format, struct str text, struct arena *a, struct client_claim **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
