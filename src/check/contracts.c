/* SPDX-License-Identifier: MIT
 *
 * The table of contracts and the run over it. A contract whose subject was named and is missing is broken, never passed by absence; what does not apply says why; what another host holds is unproven from here.
 *
 * One fault is told once: a contract that needs what another one has found broken (a header that cannot be read has no memory to plan with) does not apply, and names the other.
 */
#include "check_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct check_entry entries[] = {
    {{"file", "the fleet file can be read in one way", "keys, units, names, references and ports against the schema", "a word without effect is a setting that somebody believes in", "the message names line, column and the nearest key"}, check_file},
    {{"runtime", "each engine build is the one that was installed", "its manifest against every file of its tree, and against fleet.lock", "an engine that changed under a running fleet fails where nobody looks", "'berth runtime add' makes it again"}, check_runtime},
    {{"payload", "each file that a model names is there, and what fleet.lock pins", "one stat for a file that was proven before", "an engine without its weights does not start; without its projector it starts, and answers images with 500", "'berth pull' fetches it"}, check_payload},
    {{"model", "each model file can be read, and parts of a set belong together", "the header of every part, once", "a foreign or torn part fails after minutes of loading, or not at all", "'berth verify --repair', or 'berth pull' again"}, check_model_header},
    {{"template", "the chat template that a model names is one", "the file: there, text, with a tag", "without its template a prompt of 250 tokens became one of 73,600", "name the file that came with the model, or leave 'template' out"}, check_template},
    {{"projector", "a projector is one, for images or sound", "its header: architecture and encoders", "the engine comes up healthy and refuses the first image", "name the mmproj file of this very model"}, check_projector},
    {{"drafter", "the drafter and the kind of speculation go together", "rules of speculative decoding over both headers", "the engine serves without drafts and says so in its log alone", "the text says which key"}, check_drafter},
    {{"shape", "the engine takes the shape as declared", "rules of the engine version over model, cache types, slots and overrides", "the engine refuses at load, aborts in work, or drops it in silence", "the text says which key"}, check_shape},
    {{"argv", "the shape can be said in the engine's own flags", "the command line is made", "what cannot be said is not asked for", "the text says which key"}, check_argv},
    {{"fit", "what services take leaves each device's floor free", "every byte by the engine's rules, per device ('berth fit' shows it)", "a load that succeeds can die of memory at its first draft", "'berth fit' says what each knob would buy"}, check_fit},
    {{"slack", "what is left on a host's devices is even enough", "the gap between its devices against 'slack'", "the fuller card dies first, and the room of the other one is wasted", "'berth fit --table split' shows other splits"}, check_slack},
    {{"prompt-cache", "the prompt cache holds a full slot and leaves RAM alone", "what one full slot saves with draft state and checkpoints; half of the host's memory", "a smaller cache refuses every long conversation, and each is computed again", "raise 'prompt-cache' to what the text says, or turn it off"}, check_prompt_cache},
    {{"ports", "no port of a host has two listeners", "ports that flags and commands listen on, and those of other fleets' units", "the second one dies, or answers in the name of the first", "give it a port of its own"}, check_ports},
    {{"names", "no unit's name belongs to somebody else", "the unit files of this machine", "two owners of one name restart each other's engine", "rename the service, or take the other file away"}, check_names},
    {{"address", "what is listened on belongs to the host", "the host's interfaces", "the bind fails at the next boot, or nobody ever arrives", "use an address of that host"}, check_address},
    {{"open", "nothing without a key listens to other machines", "what generic services' commands bind and publish", "an engine asks for no key: whoever reaches it may use and read it", "bind it to {bind}; let the router be the door"}, check_open},
    {{"published", "a container's port is published or on the host's network", "'podman run' and 'docker run' in commands", "only published ports are forwarded: the engine runs and cannot be reached", "add '-p 127.0.0.1:PORT:PORT' or '--network=host'"}, check_published},
    {{"secrets", "files of keys and certificates are there, and others leave them alone", "the files, their rights, and that keys are in them", "a router without them, or with such that others can read, does not start", "'berth key add NAME' makes a key; chmod 600"}, check_secrets},
    {{"reach", "the router reaches its services, and clients the router", "addresses, hosts and networks as declared", "loopback of a host is not loopback of a container or of another host", "the text says which address"}, check_reach},
    {{"firewall", "a host's rules let probes and clients through", "its rules, read or recorded, for each port", "berth waits for an engine that is up, and restarts it for ever", "accept it, such as 'iif lo accept' or 'tcp dport PORT accept'"}, check_firewall},
    {{"clients", "a client's file is there and asks for what the fleet has", "names and addresses in the file", "a client that asks for another name gets 404", "'berth render clients' writes it"}, check_clients},
    {{"limits", "what clients are told fits into a slot", "window, answer and the point of shortening against one slot", "a conversation that outgrows its slot ends in an error in the middle of work", "'berth render clients' writes it"}, check_limits},
    {{"modalities", "clients send what the model takes", "images and sound in the file against the projector", "an image to a model without projector is answered with 500", "give the model a 'projector', or render the file again"}, check_modalities},
    {{"reasoning", "clients ask for efforts that the template knows", "efforts in the file against 'reasoning' of the model", "a template answered 500 to 'high' and 200 to 'xhigh'", "'berth render clients' writes it"}, check_reasoning},
    {{"unit", "systemd or Podman takes each unit as it is written", "systemd-analyze, or the quadlet generator, on this machine", "one unknown key removes a quadlet without a word", "the text says which line"}, check_unit_text},
    {{"deployed", "nothing is deployed that is not declared", "the unit files of this machine", "what nobody declares takes memory that the plan gives away again", "'berth deploy' retires it"}, check_deployed},
    {{"flags", "documents quote the flags that are declared", "command lines in the pages of 'documents'", "the next person starts by hand what the page says", "write the line as the text says it"}, check_flags},
    {{"links", "links of documents lead somewhere", "files and headings that pages point at", "a runbook is read when there is no time to search", "mend the link"}, check_links},
    {{"contracts", "contracts of yours can be read, and each has a name of its own", "the folder 'contracts' beside the fleet file", "a contract that is passed over holds nothing, and nobody is told", "let this account read the folder; at most 64 files"}, check_own_contracts},
};

const struct check_contract *check_contract(size_t i)
{
    return i < BASE_COUNT(entries) ? &entries[i].contract : NULL;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

int check_found(struct check_run *c, enum check_verdict v, const char *subject, const char *where, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(16384), shown = BUF_INIT(65536);
    struct check_result *list = arena_grow(c->a, c->list, c->n + 1, &c->cap, sizeof *list);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    buf_add_printable(&shown, buf_str(&text), SIZE_MAX); /* it may quote files, programs and other hosts */
    const char *kept = buf_status(&text) < 0 || buf_status(&shown) < 0 ? NULL : arena_dup(c->a, buf_str(&shown));
    const char *fix = c->fix ? c->fix : c->now->fix;
    c->fix = NULL;
    if (!list || !subject || !kept)
        return err_nomem(c->err);
    c->list = list;
    list[c->n++] = (struct check_result){.contract = c->now->name, .subject = subject, .verdict = v, .text = kept, .where = where, .why = c->now->why, .fix = v == CHECK_BROKEN ? fix : NULL};
    return 0;
}

const char *check_subject(const struct check_run *c, const char *kind, const char *name)
{
    return arena_printf(c->a, "%s %s", kind, name);
}

const char *check_short(const struct check_run *c, const char *path)
{
    size_t n = strlen(c->f->dir);
    bool inside = strncmp(path, c->f->dir, n) == 0 && path[n] == '/';
    return inside ? path + n + 1 : path;
}

const char *check_where(const struct check_run *c, const char *file, unsigned line)
{
    return line ? arena_printf(c->a, "%s:%u", check_short(c, file), line) : arena_dup(c->a, str_of(check_short(c, file)));
}

const char *check_at(const struct check_run *c, struct fleet_pos pos)
{
    return arena_printf(c->a, "%s:%u", c->f->file, pos.line);
}

/* ---- what contracts share ------------------------------------------------------------------------------------------- */

int check_want_plan(struct check_run *c)
{
    return c->plan ? 0 : check_plan_new(c->f, c->s, &c->o->plan, &c->plan, c->err);
}

const char *check_file_wrong(const struct check_run *c, const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return arena_printf(c->a, "'%s' %s", check_short(c, path), errno == ENOENT ? "is not there" : strerror(errno));
    if (!S_ISREG(st.st_mode))
        return arena_printf(c->a, "'%s' is no regular file", check_short(c, path));
    if (access(path, R_OK) < 0)
        return arena_printf(c->a, "'%s' cannot be read by this account", check_short(c, path));
    return st.st_size == 0 ? arena_printf(c->a, "'%s' is empty", check_short(c, path)) : NULL;
}

bool check_used_here(const struct fleet *f, const struct fleet_model *m, const struct fleet_runtime *rt, bool *ret_elsewhere)
{
    bool here = false;
    *ret_elsewhere = false;
    for (size_t i = 0; i < f->n_services; i++) {
        const struct fleet_service *s = &f->services[i];
        /* an engine without a model uses none */
        if (!(m && s->model == m) && !(rt && s->runtime == rt))
            continue;
        if (check_is_here(s->host))
            here = true;
        else
            *ret_elsewhere = true;
    }
    return here;
}

/* ---- the run --------------------------------------------------------------------------------------------------------- */

static bool is_asked(const struct check_options *o, const char *name)
{
    for (size_t i = 0; i < o->n_only; i++)
        if (strcmp(o->only[i], name) == 0)
            return true;
    return o->n_only == 0;
}

/* Names that are neither in the table nor in the folder. */
static int judge_names(struct check_run *c)
{
    struct check_user_folder own = {0};
    int r = c->o->n_only ? check_user_look(c->f, c->a, &own, c->err) : 0;
    size_t n = own.n;
    const char **all = r == 0 ? arena_alloc(c->a, BASE_COUNT(entries) + n, sizeof *all) : NULL;
    if (r < 0 || !all)
        return r < 0 ? r : err_nomem(c->err);
    for (size_t i = 0; i < BASE_COUNT(entries); i++)
        all[i] = entries[i].contract.name;
    if (n)
        memcpy(all + BASE_COUNT(entries), own.names, n * sizeof *all);
    n += BASE_COUNT(entries);
    for (size_t i = 0; i < c->o->n_only; i++) {
        bool known = false;
        for (size_t k = 0; k < n && !known; k++)
            known = strcmp(all[k], c->o->only[i]) == 0;
        const char *near = known ? NULL : str_nearest(str_of(c->o->only[i]), all, n);
        if (!known && near)
            return err_set(c->err, -ENOENT, "there is no contract '%.80s'; did you mean '%s'?", c->o->only[i], near);
        if (!known && own.why)
            return err_set(c->err, -ENOENT, "there is no contract '%.80s' of berth's own, and the folder 'contracts' cannot be read: %s", c->o->only[i], own.why);
        if (!known)
            return err_set(c->err, -ENOENT, "there is no contract '%.80s'; 'berth check --list' names them", c->o->only[i]);
    }
    return 0;
}

int check_fleet(const struct fleet *f, struct store *s, const struct check_options *o, struct arena *a, struct check_result **ret, size_t *ret_n, struct err *err)
{
    struct check_run c = {.a = a, .f = f, .s = s, .o = o, .err = err};
    int r = judge_names(&c);
    for (size_t i = 0; r == 0 && i < BASE_COUNT(entries); i++) {
        if (!is_asked(o, entries[i].contract.name))
            continue;
        c.now = &entries[i].contract;
        r = entries[i].prove(&c);
    }
    if (r == 0)
        r = check_users(&c);
    check_plan_free(c.plan);
    if (r < 0)
        return r;
    *ret = c.list;
    *ret_n = c.n;
    return 0;
}
