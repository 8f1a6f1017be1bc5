/* SPDX-License-Identifier: MIT
 *
 * berth init: a first fleet file for this machine. Finds models, cards and engines, works out a shape that fits, and writes a file that `berth up` starts. The file is parsed and planned once more before it is written.
 */
#include "fit_int.h"
#include "init_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES (1u << 20)
#define PORT_FIRST 7770
#define ROUTER_FIRST 8080
#define CONTEXT_ON_CPU 32768u    /* more is slow there before it is full */
#define CONTEXT_ON_CARD 131072u  /* a first fleet leaves room for a second service */
#define CONTEXT_LEAST 2048u
#define TRIES_MAX 8              /* models, largest first, until one fits */

struct init {
    const struct cmd *c;
    const struct cmd_args *a;
    struct init_finds finds;
    struct init_machine machine;
    struct init_choice choices[CMD_WORDS_MAX];
    size_t n;
    uint16_t router_port;
    const char *name;
    struct os_dirs dirs;
    struct store *store;
};

/* ---- the machine -------------------------------------------------------------------------------------------------------- */

static int read_machine(struct init *in)
{
    struct hw_reader *reader = NULL;
    struct init_machine *m = &in->machine;
    struct err err;
    int r = hw_open(getenv("BERTH_HW_ROOT"), &reader, &err);
    if (r == 0)
        r = hw_read(reader, &m->hw, &err);
    hw_close(reader);
    if (r < 0)
        return cmd_fail(CMD_FAILED, &err);
    m->sure = true;
    for (size_t i = 0; i < m->hw.n_devices; i++) {
        char name[HW_ENGINE_NAME];
        bool sure = false;
        if (!m->hw.devices[i].memory_known || !hw_engine_name(&m->hw, i, HW_VULKAN, name, &sure))
            continue;
        m->names[i] = arena_dup(in->finds.arena, str_of(name));
        m->card = m->card || m->names[i];
        m->sure = m->sure && sure;
    }
    return CMD_OK;
}

static bool is_free(uint16_t port)
{
    struct os_owner owner;
    return os_port_owner(port, &owner) == -ENOENT;
}

static uint16_t next_port(uint16_t from)
{
    uint16_t port = from;
    while (port < UINT16_MAX && !is_free(port))
        port++;
    return port;
}

/* ---- models --------------------------------------------------------------------------------------------------------------- */

static int find_models(struct init *in)
{
    struct err err;
    int r = 0;
    for (size_t i = 0; r == 0 && i < in->a->n_words; i++)
        r = init_find_path(&in->finds, in->a->words[i], &err);
    if (r == 0 && in->a->n_words == 0)
        r = init_find_usual(&in->finds, &err);
    if (r < 0)
        return cmd_fail(CMD_FAILED, &err);
    init_find_engines(&in->finds);
    return CMD_OK;
}

/* "Qwen3-8B-Q4_K_M.gguf" -> "qwen3-8b-q4_k_m", different from those that were given. */
static const char *name_of(const struct init *in, const struct init_found *x)
{
    char name[FLEET_NAME_MAX + 1];
    size_t n = 0;
    struct str label = str_of(x->label);
    if (str_ends(label, STR(".gguf")))
        label.len -= 5;
    for (size_t i = 0; i < label.len && n < 40; i++) {
        char c = label.ptr[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c + 32);
        bool fine = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (n && (c == '-' || c == '_' || c == '.'));
        if (fine)
            name[n++] = c;
    }
    const char *base = n ? arena_dup(in->finds.arena, (struct str){name, n}) : "model";
    for (size_t i = 0; base && i < in->n; i++)
        if (strcmp(in->choices[i].name, base) == 0)
            return arena_printf(in->finds.arena, "%s-%zu", base, in->n + 1);
    return base;
}

static const struct init_found *projector_of(const struct init *in, const struct init_found *x)
{
    for (size_t i = 0; i < in->finds.n; i++) {
        const struct init_found *p = &in->finds.models[i];
        if (p->role == MODEL_PROJECTOR && strcmp(p->folder, x->folder) == 0)
            return p;
    }
    return NULL;
}

static int choose(struct init *in, const struct init_found *x)
{
    struct init_choice *c = &in->choices[in->n];
    *c = (struct init_choice){.model = x, .projector = projector_of(in, x), .name = name_of(in, x), .port = next_port(in->n ? (uint16_t)(in->choices[in->n - 1].port + 1) : PORT_FIRST)};
    if (!c->name)
        return cmd_failf(CMD_FAILED, "out of memory");
    in->n++;
    return CMD_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const struct init_found *x = *(const struct init_found *const *)a, *y = *(const struct init_found *const *)b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->path, y->path);
}

/* ---- shapes ----------------------------------------------------------------------------------------------------------------- */

static int parse(const struct buf *text, struct fleet **ret)
{
    const struct fleet_options o = engine_fleet_options();
    struct err err;
    /* what we wrote must be readable by ourselves */
    return fleet_parse(buf_str(text), "fleet.yaml", &o, ret, &err) < 0 ? cmd_failf(CMD_FAILED, "no fleet file can say this machine: %s", err.text) : CMD_OK;
}

static void space_of(const struct check_need *n, struct fit_space *sp)
{
    bool card = n->input.n_devices > 0;
    uint32_t most = card ? CONTEXT_ON_CARD : CONTEXT_ON_CPU, trained = n->target->context_trained;
    most = trained && trained < most ? trained : most;
    *sp = (struct fit_space){.split = n->input.n_devices > 1, .gpu_layers = card, .cpu_moe = card && n->target->experts > 0, .projector_device = card && n->projector, .want = FIT_WANT_CONTEXT};
    for (uint32_t c = most; c >= CONTEXT_LEAST && sp->n_contexts < 8; c /= 2)
        sp->contexts[sp->n_contexts++] = c / 256 * 256;
    if (!sp->n_contexts && most)
        sp->contexts[sp->n_contexts++] = most;
    sp->slots[sp->n_slots++] = 1;
    sp->ubatches[sp->n_ubatches++] = 512;
    sp->kv[sp->n_kv++] = n->shape.k_type;
}

/* The services with the shapes that were found, as text; false when nothing fits. */
static int solve(struct init *in, const struct check_plan *p, struct arena *a, bool *ret_fits, struct buf *out)
{
    struct fit_input inputs[FIT_SERVICES_MAX];
    struct fit_space *spaces = arena_alloc(a, p->n_needs, sizeof(*spaces));
    struct fit_choice *choices = NULL;
    size_t n_points = 0;
    struct err err;
    *ret_fits = false;
    if (!spaces)
        return cmd_failf(CMD_FAILED, "out of memory");
    for (size_t i = 0; i < p->n_needs; i++) {
        struct check_need *n = &p->needs[i];
        if (n->why)
            return cmd_failf(CMD_FAILED, "%s: %s", in->choices[i].model->path, n->why);
        inputs[i] = n->input;
        inputs[i].devices = n->machine->devices;
        inputs[i].host = &n->machine->memory;
        space_of(n, &spaces[i]);
    }
    if (fit_solve(inputs, p->n_needs, spaces, a, &choices, &n_points, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    *ret_fits = n_points > 0;
    for (size_t i = 0; n_points && i < p->n_needs; i++) {
        struct fleet_service sv;
        if (fit_service_of(p->needs[i].service, &choices[i].shape, &choices[i].result, a, &sv, &err) < 0)
            return cmd_fail(CMD_FAILED, &err);
        fit_service_yaml(&sv, 2, out);
    }
    return CMD_OK;
}

/* Writes the file's text for the chosen models. */
static int work_out(struct init *in, bool *ret_fits, struct buf *out)
{
    base_autobuf struct buf draft = BUF_INIT(FILE_MAX_BYTES), services = BUF_INIT(FILE_MAX_BYTES);
    struct fleet *f = NULL;
    struct check_plan *p = NULL;
    struct arena *a = arena_new((size_t)512 << 20);
    struct err err;
    init_write(&in->finds, &in->machine, in->choices, in->n, in->name, in->router_port, NULL, &draft);
    int code = a && buf_status(&draft) == 0 ? parse(&draft, &f) : cmd_failf(CMD_FAILED, "out of memory");
    const struct check_plan_options options = {.hw_root = getenv("BERTH_HW_ROOT")};
    if (code == CMD_OK && check_plan_new(f, in->store, &options, &p, &err) < 0)
        code = cmd_fail(CMD_FAILED, &err);
    if (code == CMD_OK)
        code = solve(in, p, a, ret_fits, &services);
    check_plan_free(p);
    f = fleet_free(f);
    arena_free(a);
    if (code != CMD_OK || !*ret_fits)
        return code;
    init_write(&in->finds, &in->machine, in->choices, in->n, in->name, in->router_port, services.ptr, out);
    code = buf_status(&services) == 0 && buf_status(out) == 0 ? parse(out, &f) : cmd_failf(CMD_FAILED, "out of memory");
    fleet_free(f);
    return code;
}

/* Files that were named are all served; else the largest model that fits. */
static int choose_and_work_out(struct init *in, struct buf *out)
{
    const struct init_found *list[INIT_FOUND_MAX];
    size_t n = 0, tried = 0;
    bool fits = false;
    int code = CMD_OK;
    for (size_t i = 0; i < in->finds.n; i++)
        if (in->finds.models[i].chat && in->finds.models[i].known)
            list[n++] = &in->finds.models[i];
    qsort(list, n, sizeof(void *), by_bytes);
    for (size_t i = 0; code == CMD_OK && i < n && in->n < FIT_SERVICES_MAX; i++)
        if (list[i]->named)
            code = choose(in, list[i]);
    if (code == CMD_OK && in->n) {
        code = work_out(in, &fits, out);
        return code == CMD_OK && !fits ? cmd_failf(CMD_FAILED, "%s not fit here, with a context of %u tokens and a floor of 1 GiB", in->n == 1 ? "the model does" : "the models together do", CONTEXT_LEAST) : code;
    }
    for (size_t i = 0; code == CMD_OK && !fits && i < n && tried < TRIES_MAX; i++) {
        /* what is larger than all memory needs no trial */
        uint64_t all = in->machine.hw.host.total_bytes;
        for (size_t d = 0; d < in->machine.hw.n_devices; d++)
            all += in->machine.names[d] ? in->machine.hw.devices[d].total_bytes : 0;
        if (list[i]->bytes > all)
            continue;
        in->n = 0;
        tried++;
        code = choose(in, list[i]);
        if (code == CMD_OK)
            code = work_out(in, &fits, out);
    }
    if (code != CMD_OK || fits)
        return code;
    if (!n)
        return cmd_failf(CMD_FAILED, "no model was found%s; name one: berth init FILE.gguf", in->finds.n_bad ? " that can be read" : "");
    return cmd_failf(CMD_FAILED, "none of the %zu models that were found fits here", n);
}

/* ---- the file ------------------------------------------------------------------------------------------------------------------ */

static const char *fleet_name(struct init *in)
{
    char host[256] = "";
    char name[41];
    size_t n = 0;
    if (gethostname(host, sizeof(host) - 1) < 0)
        return "home";
    for (size_t i = 0; host[i] && host[i] != '.' && n < 40; i++) {
        char c = host[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c + 32);
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (n && c == '-'))
            name[n++] = c;
    }
    return n ? arena_dup(in->finds.arena, (struct str){name, n}) : "home";
}

static int write_file(const struct init *in, const char *path, const struct buf *text)
{
    struct err err;
    int r = cmd_write_file(path, buf_str(text), cmd_given(in->c, in->a, "force"), &err);
    if (r == -EEXIST)
        return cmd_failf(CMD_FAILED, "'%s' exists: --force replaces it, --print writes to stdout, -o names another file", path);
    if (r < 0)
        return cmd_fail(CMD_FAILED, &err);
    base_autobuf struct buf said = BUF_INIT(16384);
    buf_addf(&said, "%s is written: %s", path, in->choices[0].name);
    if (in->n > 1)
        buf_addf(&said, " and %zu more", in->n - 1);
    const char *option = strcmp(path, "fleet.yaml") == 0 ? "" : " -f ", *file = *option ? path : "";
    buf_addf(&said, " on %s\n'berth fit%s%s' shows what it takes, ", in->machine.card ? "the card" : "the CPU", option, file);
    if (in->machine.units)
        buf_addf(&said, "'berth runtime add%s%s' and then 'berth deploy%s%s' start it\n", option, file, option, file);
    else
        buf_addf(&said, "'berth up%s%s' starts it\n", option, file);
    return cmd_print(buf_str(&said));
}

static int init(struct init *in)
{
    base_autobuf struct buf text = BUF_INIT(FILE_MAX_BYTES);
    const char *path = cmd_value(in->c, in->a, "output");
    struct err err;
    struct stat st;
    path = path ? path : "fleet.yaml";
    bool print = cmd_given(in->c, in->a, "print");
    if (!print && !cmd_given(in->c, in->a, "force") && lstat(path, &st) == 0)
        return cmd_failf(CMD_FAILED, "'%s' exists: --force replaces it, --print writes to stdout, -o names another file", path);
    if (os_dirs_find(&in->dirs, &err) < 0 || store_look(&in->dirs, &in->store, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    in->name = fleet_name(in);
    in->router_port = next_port(ROUTER_FIRST);
    in->machine.units = cmd_given(in->c, in->a, "units");
    int code = in->name ? find_models(in) : cmd_failf(CMD_FAILED, "out of memory");
    if (code == CMD_OK)
        code = read_machine(in);
    if (code == CMD_OK)
        code = choose_and_work_out(in, &text);
    if (code != CMD_OK)
        return code;
    return print ? cmd_print(buf_str(&text)) : write_file(in, path, &text);
}

static int run_init(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code))
        return code;
    struct init *in = calloc(1, sizeof(*in));
    if (in)
        in->finds.arena = arena_new((size_t)64 << 20);
    if (!in || !in->finds.arena) {
        free(in);
        return cmd_failf(CMD_FAILED, "out of memory");
    }
    in->c = c;
    in->a = &a;
    code = init(in);
    store_free(in->store);
    os_dirs_release(&in->dirs);
    arena_free(in->finds.arena);
    free(in);
    return code;
}

const struct cmd cmd_init = {
    .name = "init",
    .synopsis = "[-o FILE] [--force] [--print] [--units] [PATH...]",
    .summary = "look at this machine and write a first fleet file that works",
    .description = "Finds models (GGUF files below the PATHs; without one in the Hugging Face cache, LM Studio's and Ollama's folders, llama.cpp's cache and ~/models), the machine's cards and engines, works out a shape that fits, and writes "
                   "a commented fleet file that 'berth up' starts.\n\n"
                   "A file named as PATH is served, each as a service of its own; of a folder the largest model that fits is, and the others are listed in comments. On a machine without a card the engine runs on the CPU. The engine is Debian's "
                   "llama.cpp in a runtime of its own, which 'berth up' installs; engines that are here already are named in comments.\n\n"
                   "With --units the services and the router are units of systemd, which keeps them running from each boot on: 'berth deploy' starts them instead of 'berth up'. A file that exists is never replaced without --force.",
    .examples = "berth init\nberth init ~/models/Qwen3-8B-Q4_K_M.gguf\nberth init --print ~/models\nberth init --units /srv/models/Qwen3-8B-Q4_K_M.gguf",
    .options =
        {
            {'o', "output", "FILE", "where to write (default ./fleet.yaml)"},
            {0, "force", NULL, "replace a file that exists"},
            {0, "print", NULL, "write to stdout"},
            {0, "units", NULL, "have systemd keep services and router running"},
        },
    .run = run_init,
};
