/* SPDX-License-Identifier: MIT
 *
 * Parts of `berth init`: which models and engines this machine has (init_find.c), and the fleet file that is written for them (init_write.c).
 */
#pragma once

#include "cmd_int.h"

#include <hw/hw.h>
#include <model/model.h>

#define INIT_FOUND_MAX 256
#define INIT_ENGINES_MAX 8

struct init_found {
    const char *path, *folder, *file; /* path is folder/file */
    const char *place;                /* "the Hugging Face cache"; NULL: below what was named */
    const char *label;                /* what it is called there, for a name: "Qwen3-8B-Q4_K_M", "llama3.2-3b" */
    enum model_role role;
    bool named;                       /* on the command line, as a file */
    bool known, chat;                 /* the laws of its architecture are known; it generates text */
    const char *arch;
    uint64_t bytes, params;
    uint32_t context;
};
struct init_finds {
    struct arena *arena;
    struct init_found models[INIT_FOUND_MAX];
    size_t n, n_more;                 /* n_more: beyond the limit */
    size_t n_bad;                     /* that could not be read */
    const char *engines[INIT_ENGINES_MAX]; /* llama-server programs on this machine */
    size_t n_engines;
};
/* Looks below path, a file or folder, or where other programs keep models. -ENOENT when path does not exist. */
int init_find_path(struct init_finds *f, const char *path, struct err *err) BASE_MUST_USE;
int init_find_usual(struct init_finds *f, struct err *err) BASE_MUST_USE;
void init_find_engines(struct init_finds *f);

/* What the file says of the machine. */
struct init_machine {
    struct hw hw;
    bool card;                 /* it has a card that an engine from Debian can use */
    const char *names[HW_DEVICES_MAX]; /* engine's names of the cards that are declared; NULL: not declared */
    bool sure;
    bool units;                /* systemd is to keep the services running, not berth up */
};
struct init_choice {
    const struct init_found *model, *projector; /* projector NULL: none */
    const char *name;          /* of model and service */
    uint16_t port;
};
/* The fleet file. services is the text below "services:", or NULL for one without a shape, which a shape is then worked out from. */
void init_write(const struct init_finds *f, const struct init_machine *m, const struct init_choice *choices, size_t n, const char *name, uint16_t router_port, const char *services, struct buf *out);
