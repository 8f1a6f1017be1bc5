/* SPDX-License-Identifier: MIT
 *
 * The fleet file that berth init writes: what was found, in the words of a fleet file, with comments that say why and what else there is.
 */
#include "fit_int.h"
#include "init_int.h"

#include <string.h>
#include <unistd.h>

#define OTHERS_SHOWN 12

static void add_hosts(const struct init_machine *m, struct buf *out)
{
    const struct hw_host *h = &m->hw.host;
    char size[UNITS_TEXT];
    buf_add_c(out, "hosts:\n  here:\n");
    buf_addf(out, "    # %s, %u threads, %s of RAM; without \"memory:\" what is free of it at the moment counts\n", h->cpu[0] ? h->cpu : "this machine", h->threads, units_show_bytes(h->total_bytes, size));
    if (m->units && geteuid() != 0)
        buf_add_c(out, "    scope: user           # this account's own units; 'loginctl enable-linger' has them start at boot\n");
    buf_add_c(out, "    floor: 1GiB           # of free memory that must remain on every device\n");
    if (!m->card) {
        buf_add_c(out, "    # no card was found that an engine could use: everything runs on the CPU\n");
        return;
    }
    if (!m->sure)
        buf_add_c(out, "    # the engine's own order of these cards may differ: compare with what its log says at start\n");
    buf_add_c(out, "    devices:\n");
    for (size_t i = 0; i < m->hw.n_devices; i++) {
        const struct hw_device *d = &m->hw.devices[i];
        if (!m->names[i])
            continue;
        buf_addf(out, "      - {name: %s, memory: %lluMiB, pci: \"%s\"}   # ", m->names[i], (unsigned long long)(d->total_bytes >> 20), d->pci);
        buf_add_printable(out, str_of(d->name), 60);
        buf_addf(out, "%s\n", d->shared ? ", its memory is the machine's" : "");
    }
}

static void add_runtimes(const struct init_finds *f, const struct init_machine *m, struct buf *out)
{
    buf_addf(out, "\nruntimes:\n  # a pinned build of the engine with every library that it needs: '%s' installs it\n  llama:\n    engine: llama.cpp\n    source: \"debian:forky\"\n", m->units ? "berth runtime add" : "berth up");
    buf_addf(out, "    packages: [llama.cpp-tools%s]\n", m->card ? ", libggml0-backend-vulkan" : "");
    for (size_t i = 0; i < f->n_engines; i++) {
        const char *slash = strrchr(f->engines[i], '/');
        buf_add_c(out, "  # found here: ");
        buf_add_printable(out, str_of(f->engines[i]), 200);
        if (str_starts(str_of(f->engines[i]), STR("/usr/bin/")) || str_starts(str_of(f->engines[i]), STR("/usr/local/bin/")))
            buf_add_c(out, "; to use it: source: system, without packages\n");
        else
            buf_addf(out, "; to use it: source: \"path:%.*s\", without packages\n", (int)(slash - f->engines[i]), f->engines[i]);
    }
}

static bool is_chosen(const struct init_choice *choices, size_t n, const struct init_found *x)
{
    for (size_t i = 0; i < n; i++)
        if (choices[i].model == x || choices[i].projector == x)
            return true;
    return false;
}

static void add_others(const struct init_finds *f, const struct init_choice *choices, size_t n, struct buf *out)
{
    static const char *const roles[] = {[MODEL_TARGET] = "model", [MODEL_PROJECTOR] = "projector", [MODEL_DRAFT_SIMPLE] = "drafter", [MODEL_DRAFT_EAGLE3] = "drafter (draft-eagle3)",
                                        [MODEL_DRAFT_DFLASH] = "drafter (draft-dflash)", [MODEL_DRAFT_DSPARK] = "drafter (draft-dspark)", [MODEL_DRAFT_ASSISTANT] = "assistant"};
    size_t shown = 0, others = f->n_more;
    for (size_t i = 0; i < f->n; i++) {
        const struct init_found *x = &f->models[i];
        char size[UNITS_TEXT];
        if (is_chosen(choices, n, x))
            continue;
        if (shown == OTHERS_SHOWN) {
            others++;
            continue;
        }
        buf_addf(out, "%s  # ", shown++ ? "" : "  # also found:\n");
        buf_add_printable(out, str_of(x->path), 300);
        buf_addf(out, ": %s, %s, %s\n", roles[x->role], x->arch, units_show_bytes(x->bytes, size));
    }
    if (others)
        buf_addf(out, "  # and %zu more\n", others);
}

static void add_models(const struct init_finds *f, const struct init_choice *choices, size_t n, struct buf *out)
{
    buf_add_c(out, "\nmodels:\n");
    for (size_t i = 0; i < n; i++) {
        const struct init_found *x = choices[i].model;
        char size[UNITS_TEXT];
        base_autobuf struct buf source = BUF_INIT(16384);
        buf_addf(&source, "file:%s", x->folder);
        buf_addf(out, "  %s:\n    # %s, %s of weights%s%s\n    source: ", choices[i].name, x->arch, units_show_bytes(x->bytes, size), x->place ? ", found in " : "", x->place ? x->place : "");
        buf_add_quoted(out, str_of(source.ptr ? source.ptr : ""));
        buf_add_c(out, "\n    weights: ");
        buf_add_quoted(out, str_of(x->file));
        if (choices[i].projector) {
            buf_add_c(out, "\n    projector: ");
            buf_add_quoted(out, str_of(choices[i].projector->file));
        }
        buf_add_char(out, '\n');
    }
    add_others(f, choices, n, out);
}

static void add_service(const struct init_choice *c, const struct init_machine *m, struct buf *out)
{
    buf_addf(out, "  %s:\n    host: here\n    runtime: llama\n    model: %s\n    port: %u\n", c->name, c->name, c->port);
    if (!m->card)
        buf_add_c(out, "    gpu-layers: 0\n");
    if (m->units)
        buf_add_c(out, "    unit: systemd\n");
}

void init_write(const struct init_finds *f, const struct init_machine *m, const struct init_choice *choices, size_t n, const char *name, uint16_t router_port, const char *services, struct buf *out)
{
    buf_addf(out, "# Written by berth init for this machine. Next: 'berth check' proves it, 'berth fit' shows what it takes, %s.\n",
             m->units ? "'berth runtime add' and 'berth deploy' start it, now and at each boot" : "'berth up' starts it");
    buf_addf(out, "version: 1\nname: %s\n\n", name);
    add_hosts(m, out);
    add_runtimes(f, m, out);
    add_models(f, choices, n, out);
    buf_add_c(out, "\nservices:\n");
    if (services)
        buf_add_c(out, services);
    for (size_t i = 0; !services && i < n; i++)
        add_service(&choices[i], m, out);
    buf_add_c(out, "\n# the names that clients ask for\nendpoints:\n");
    for (size_t i = 0; i < n; i++)
        buf_addf(out, "  %s: {services: [%s]}\n", choices[i].name, choices[i].name);
    buf_addf(out, "\n# the one address for clients\nrouter: {%slisten: \"127.0.0.1:%u\"}\n", m->units ? "host: here, unit: systemd, " : "", router_port);
}
