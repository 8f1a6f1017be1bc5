/* SPDX-License-Identifier: MIT
 *
 * fleet.yaml: whole files that are right become the structs that they say; each file of test/fleet/bad is refused with the
 * line that its first comment expects; docs/fleet.md names the keys of the schema and its example loads. Then bounds, and
 * running out of memory.
 */
#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <fleet/fleet_int.h>
#include <glob.h>
#include <os/os.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#include "failing_malloc.h"

static struct fleet_options options; /* of the engines that there are */

static struct fleet *load(const char *path)
{
    struct fleet *f = NULL;
    struct err err = {0};
    if (fleet_load(path, &options, &f, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

static struct fleet *parse(const char *text, const char *path)
{
    struct fleet *f = NULL;
    struct err err = {0};
    if (fleet_parse(str_of(text), path, &options, &f, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

static void assert_refused(struct str text, const char *want)
{
    struct fleet *f = NULL;
    struct err err = {0};
    assert_int_equal(fleet_parse(text, "f.yaml", &options, &f, &err), -EINVAL);
    assert_null(f);
    assert_int_equal(err.code, -EINVAL);
    assert_string_equal(err.text, want);
    assert_int_equal(fleet_parse(text, "f.yaml", &options, &f, NULL), -EINVAL);
}

/* dir/rest below the current folder, where the tests run. */
static const char *below_cwd(const char *rest)
{
    static char path[4096];
    base_autofree char *cwd = getcwd(NULL, 0);
    (void)snprintf(path, sizeof path, "%s/%s", cwd, rest);
    return path;
}

/* ---- files that are right ----------------------------------------------------------------------------------- */

static void minimal(void **state)
{
    (void)state;
    struct fleet *f = load("test/fleet/good/minimal.yaml");
    assert_string_equal(f->name, "m");
    assert_string_equal(f->file, "test/fleet/good/minimal.yaml");
    assert_string_equal(f->dir, below_cwd("test/fleet/good"));
    assert_int_equal(f->n_hosts, 1);
    assert_string_equal(f->hosts[0].name, "here");
    assert_null(f->hosts[0].ssh);
    assert_int_equal(f->n_runtimes + f->n_models + f->n_services + f->n_endpoints, 0);
    assert_false(f->router.declared);
    assert_null(f->router.host);
    assert_string_equal(f->router.address, "127.0.0.1");
    assert_int_equal(f->router.port, 8080);
    assert_null(fleet_service_find(f, "m"));
    assert_null(fleet_free(f));
    assert_null(fleet_free(NULL));
}

static void one_service_with_defaults(void **state)
{
    (void)state;
    struct fleet *f = load("test/fleet/good/one-service.yaml");
    const struct fleet_service *s = fleet_service_find(f, "a");
    assert_non_null(s);
    assert_ptr_equal(s->host, f->hosts);
    assert_ptr_equal(s->runtime, f->runtimes);
    assert_ptr_equal(s->model, f->models);
    assert_int_equal(s->port, 7770);
    assert_string_equal(s->bind, "127.0.0.1");
    assert_int_equal(s->unit, FLEET_CHILD);
    assert_int_equal(s->pos.line, 5);
    assert_int_equal(s->pos.column, 3);
    assert_int_equal(s->shape.slots, 1);
    assert_int_equal(s->shape.context, 0);
    assert_true(s->shape.split_auto);
    assert_false(s->shape.gpu_layers_set || s->shape.prompt_cache_set);
    assert_int_equal(s->shape.flash_attention, FLEET_AUTO);
    assert_null(s->shape.kv_k);
    assert_int_equal(s->n_args + s->n_env + s->n_command, 0);
    assert_null(s->health);
    assert_true(fleet_service_local(s));
    assert_string_equal(f->models[0].source_arg, f->dir);
    assert_string_equal(f->models[0].weights, "parts/tiny-00001-of-00002.gguf");
    assert_null(f->models[0].revision);
    assert_int_equal(f->runtimes[0].source, FLEET_SOURCE_SYSTEM);
    assert_null(f->runtimes[0].source_arg);
    assert_int_equal(f->n_endpoints, 1);
    assert_string_equal(f->endpoints[0].name, "a");
    assert_int_equal(f->endpoints[0].n_services, 1);
    assert_ptr_equal(f->endpoints[0].services[0], s);
    fleet_free(f);
}

static void full_hosts_and_sources(void **state)
{
    (void)state;
    struct fleet *f = load("test/fleet/good/full.yaml");
    assert_string_equal(f->name, "full-fleet_1.0");
    assert_int_equal(f->n_hosts, 2);
    assert_int_equal(f->hosts[0].scope, FLEET_USER);
    assert_true(f->hosts[0].memory_bytes == 8ULL << 30);
    const struct fleet_host *big = &f->hosts[1];
    assert_string_equal(big->ssh, "op@big.example");
    assert_string_equal(big->address, "2001:db8::7");
    assert_int_equal(big->scope, FLEET_SYSTEM);
    assert_true(big->floor_bytes == 3ULL << 29);
    assert_string_equal(big->firewall, below_cwd("test/fleet/good/firewall/big.nft"));
    assert_null(f->hosts[0].firewall);
    assert_int_equal(big->n_devices, 2);
    assert_string_equal(big->devices[0].name, "ROCm0");
    assert_true(big->devices[0].memory_bytes == 34209414513ULL); /* 31.86 GiB in whole bytes */
    assert_string_equal(big->devices[0].pci, "0000:03:00.0");
    assert_true(big->devices[0].bandwidth_bytes_s == 640000000000ULL);
    assert_true(big->devices[0].link_bytes_s == 31500000000ULL);
    assert_int_equal(big->devices[1].pos.line, 16);
    assert_int_equal(big->devices[1].pos.column, 9);
    assert_null(big->devices[1].pci);
    assert_true(big->devices[1].memory_bytes == 32000000000ULL);

    assert_int_equal(f->runtimes[0].source, FLEET_SOURCE_DEBIAN);
    assert_string_equal(f->runtimes[0].source_arg, "forky");
    assert_int_equal(f->runtimes[0].n_packages, 2);
    assert_string_equal(f->runtimes[0].packages[1], "libstdc++6");
    assert_int_equal(f->runtimes[1].source, FLEET_SOURCE_PATH);
    assert_string_equal(f->runtimes[1].source_arg, below_cwd("test/fleet/good/../build"));
    assert_string_equal(f->runtimes[2].source_arg, "/opt/vllm");
    assert_string_equal(f->runtimes[2].engine, "vllm");

    const struct fleet_model *m = f->models;
    assert_int_equal(m[0].source, FLEET_MODEL_HF);
    assert_string_equal(m[0].source_arg, "example/Qwen3.8-27B-GGUF");
    assert_string_equal(m[0].revision, "v1.0/x");
    assert_string_equal(m[0].projector, "mmproj.gguf");
    assert_string_equal(m[0].drafter, "draft.gguf");
    assert_string_equal(m[0].template_file, below_cwd("test/fleet/good/templates/qwen.jinja"));
    assert_string_equal(m[1].revision, "main");
    assert_string_equal(m[1].template_file, "/etc/t.jinja");
    assert_int_equal(m[2].source, FLEET_MODEL_FILE);
    assert_string_equal(m[2].source_arg, "/models/x");
    fleet_free(f);
}

static void full_service(void **state)
{
    (void)state;
    struct fleet *f = load("test/fleet/good/full.yaml");
    const struct fleet_service *s = fleet_service_find(f, "medium");
    const struct fleet_shape *h = &s->shape;
    assert_ptr_equal(s->host, &f->hosts[1]);
    assert_string_equal(s->bind, "127.0.0.2");
    assert_string_equal(s->key, "/etc/berth/medium.key");
    assert_false(fleet_service_wide(s));
    assert_int_equal(h->context, 262144);
    assert_int_equal(h->slots, 2);
    assert_false(h->split_auto);
    assert_int_equal(h->n_split, 2);
    assert_true(h->split[0] == 36 && h->split[1] == 29.5);
    assert_true(h->gpu_layers_set && h->gpu_layers == 0);
    assert_int_equal(h->batch, 2048);
    assert_int_equal(h->ubatch, 512);
    assert_string_equal(h->kv_k, "f16");
    assert_string_equal(h->kv_v, "q8_0");
    assert_int_equal(h->flash_attention, FLEET_ON);
    assert_int_equal(h->unified_kv, FLEET_OFF);
    assert_true(h->prompt_cache_set && h->prompt_cache_bytes == 16ULL << 30);
    assert_int_equal(h->n_speculative, 2);
    assert_string_equal(h->speculative[0], "draft-dflash");
    assert_string_equal(h->speculative[1], "ngram-mod");
    assert_int_equal(h->draft_max, 7);
    assert_int_equal(h->threads, 8);
    assert_int_equal(s->unit, FLEET_SYSTEMD);
    assert_false(fleet_service_local(s));
    assert_int_equal(s->n_args, 4);
    assert_string_equal(s->args[1], "deepseek");
    assert_string_equal(s->args[2], "-1");
    assert_string_equal(s->args[3], "");
    assert_int_equal(s->n_env, 2);
    assert_string_equal(s->env[0], "HIP_VISIBLE_DEVICES=0");
    assert_string_equal(s->env[1], "EMPTY=");
    assert_true(s->serves.tools && s->serves.reasoning && s->serves.images && !s->serves.sound);
    assert_int_equal(s->serves.n_efforts, 2);
    assert_string_equal(s->serves.efforts[1], "high");

    const struct fleet_service *same = fleet_service_find(f, "same-port");
    assert_int_equal(same->port, 7770); /* on another host */
    assert_string_equal(same->bind, "::1");
    assert_true(same->shape.prompt_cache_set && same->shape.prompt_cache_bytes == 0 && same->shape.split_auto);
    assert_true(fleet_service_local(same));
    assert_string_equal(fleet_service_find(f, "quad")->shape.kv_v, "fp8"); /* the types are llama.cpp's only there */
    assert_int_equal(fleet_service_find(f, "quad")->unit, FLEET_QUADLET);

    const struct fleet_service *fork = fleet_service_find(f, "fork");
    assert_null(fork->model);
    assert_int_equal(fork->n_command, 2);
    assert_string_equal(fork->command[1], "--listen={bind}:{port}");
    assert_string_equal(fork->health, "/ready?full=1");
    assert_string_equal(fork->identity, "/v1/models");
    fleet_free(f);
}

static void full_pinned_runtimes(void **state)
{
    (void)state;
    struct fleet *f = load("test/fleet/good/full.yaml");
    static const char digest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const struct fleet_runtime *image = fleet_service_find(f, "quad")->runtime;
    assert_int_equal(image->source, FLEET_SOURCE_OCI);
    assert_string_equal(image->digest, digest);
    assert_string_equal(image->source_arg, "registry.example:5000/team/vllm:v1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    assert_int_equal(image[1].source, FLEET_SOURCE_ARCHIVE);
    assert_string_equal(image[1].source_arg, "https://example.org/llama.tar.gz");
    assert_string_equal(image[1].digest, digest);
    assert_int_equal(image[2].source, FLEET_SOURCE_ARCHIVE);
    assert_string_equal(image[2].source_arg, below_cwd("test/fleet/good/builds/llama.zip"));
    assert_null(image[-1].digest);
    fleet_free(f);
}

static void full_clients_and_documents(void **state)
{
    (void)state;
    struct fleet *f = load("test/fleet/good/full.yaml");
    assert_int_equal(f->n_clients, 2);
    const struct fleet_client *c = f->clients;
    assert_int_equal(c->format, FLEET_OPENCODE);
    assert_string_equal(fleet_format_name(c->format), "opencode");
    assert_string_equal(c->file, below_cwd("test/fleet/good/clients/opencode.json"));
    assert_false(c->elsewhere || c->host || c->url || c->key_env || c->n_endpoints || c->output);
    assert_int_equal(c->network, FLEET_NETWORK_HOST);
    assert_int_equal(c->compact, FLEET_COMPACT);
    c++;
    assert_int_equal(c->format, FLEET_LITELLM);
    assert_ptr_equal(c->host, &f->hosts[1]);
    assert_int_equal(c->network, FLEET_NETWORK_BRIDGE);
    assert_string_equal(c->url, "http://[2001:db8::7]:8080/v1");
    assert_string_equal(c->key_env, "BERTH_KEY");
    assert_int_equal(c->n_endpoints, 1);
    assert_ptr_equal(c->endpoints[0], &f->endpoints[1]);
    assert_int_equal(c->output, 32768);
    assert_int_equal(c->compact, 60);
    assert_int_equal(f->n_documents, 2);
    assert_string_equal(f->documents[0].path, below_cwd("test/fleet/good/runbook.md"));
    assert_string_equal(f->documents[1].path, "/srv/notes.md");
    assert_int_equal(f->documents[1].pos.column, 25);
    assert_int_equal(f->models[0].n_efforts, 2);
    assert_string_equal(f->models[0].efforts[1].name, "high");
    assert_string_equal(f->models[0].efforts[1].sent, "xhigh");
    fleet_free(f);
}

static void full_endpoints_and_router(void **state)
{
    (void)state;
    struct fleet *f = load("test/fleet/good/full.yaml");
    assert_int_equal(f->n_endpoints, 2);
    const struct fleet_endpoint *e = f->endpoints;
    assert_string_equal(e->name, "Qwen/Qwen3.8:27b");
    assert_int_equal(e->n_services, 2);
    assert_ptr_equal(e->services[1], fleet_service_find(f, "quad"));
    assert_int_equal(e->policy, FLEET_ROUNDROBIN);
    assert_int_equal(f->endpoints[1].policy, FLEET_ADAPTIVE);
    assert_string_equal(fleet_policy_name(FLEET_ROUNDROBIN), "roundrobin");
    assert_string_equal(fleet_policy_name(FLEET_STICKY), "sticky");
    assert_int_equal(e->n_aliases, 2);
    assert_string_equal(e->aliases[0], "gpt-4o");
    assert_true(f->router.declared);
    assert_ptr_equal(f->router.host, &f->hosts[0]);
    assert_string_equal(f->router.address, "::1");
    assert_int_equal(f->router.port, 0);
    assert_int_equal(f->router.pos.column, 1);
    fleet_free(f);
}

static void router_forms(void **state)
{
    (void)state;
    struct fleet *f = parse("version: 1\nname: r\nhosts: {big: {ssh: big}}\nrouter: {host: here, listen: 0.0.0.0:9090, keys-file: keys, admin: \"[::1]:9091\", cors: [\"https://a.example\", \"http://127.0.0.1:3000\"]}\n", "/x/f.yaml");
    assert_null(f->router.host); /* this machine, though not declared */
    assert_string_equal(f->router.address, "0.0.0.0");
    assert_int_equal(f->router.port, 9090);
    assert_string_equal(f->router.keys_file, "/x/keys");
    assert_string_equal(f->router.admin, "::1");
    assert_int_equal(f->router.admin_port, 9091);
    assert_int_equal(f->router.n_cors, 2);
    assert_string_equal(f->router.cors[1], "http://127.0.0.1:3000");
    fleet_free(f);
    f = parse("version: 1\nname: r\nhosts: {big: {ssh: big}}\nrouter: {host: big}\n", "f.yaml");
    assert_ptr_equal(f->router.host, f->hosts);
    assert_int_equal(f->router.port, 8080);
    assert_null(f->router.socket);
    assert_null(f->router.certificate);
    fleet_free(f);
    f = parse("version: 1\nname: r\nrouter: {listen: \"unix:run/r.sock\", group: llm}\n", "/srv/f.yaml");
    assert_string_equal(f->router.socket, "/srv/run/r.sock");
    assert_string_equal(f->router.group, "llm");
    fleet_free(f);
    f = parse("version: 1\nname: r\nrouter: {tls: {certificate: a.pem, key: /etc/key.pem}}\n", "/srv/f.yaml");
    assert_string_equal(f->router.certificate, "/srv/a.pem");
    assert_string_equal(f->router.key, "/etc/key.pem");
    fleet_free(f);
    static const char *const bad[] = {"8080", "127.0.0.1", "127.0.0.1:", ":8080", "[127.0.0.1]:80", "[::1]", "::1", "[::1:80", "localhost:80", "127.1:80", "[]:1"};
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        char text[128], want[256];
        (void)snprintf(text, sizeof text, "version: 1\nname: r\nrouter: {listen: \"%s\"}\n", bad[i]);
        (void)snprintf(want, sizeof want,
                       "f.yaml:3:18: 'listen' of the router must be ADDRESS:PORT, such as '127.0.0.1:8080' or '[::1]:8080', or unix:PATH, not '%s'", bad[i]);
        assert_refused(str_of(text), want);
    }
}

/* Wherever a port is written, it is one. */
static void ports(void **state)
{
    (void)state;
#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define RANGE "ports are 1 to 65535"
    static const struct {
        const char *before, *after, *place;
        const char *says; /* behind the port, which is named; NULL: it is not */
        bool zero;        /* is one too */
    } where[] = {
        {"router: {listen: \"127.0.0.1:", "\"}\n", "3:18: 'listen' of the router", "; " RANGE ", and with 0 the system chooses one", true},
        {"router: {admin: \"[::1]:", "\"}\n", "3:17: 'admin' of the router", "; " RANGE ", and with 0 the system chooses one", true},
        {"router: {cors: [\"http://chat.example:", "\"]}\n", "3:17: item 1 of 'cors' of the router", "; " RANGE, false},
        {"models: {m: {source: \"https://web.example:", "/folder\", weights: w}}\n", "3:22: 'source' of model 'm'", "; " RANGE, false},
        {"runtimes: {l: {engine: llama.cpp, source: \"archive:https://web.example:", "/a.tar#sha256=" DIGEST "\"}}\n", "3:43: 'source' of runtime 'l'", NULL, false},
        {"runtimes: {l: {engine: vllm, source: \"oci:registry.example:", "/vllm@sha256:" DIGEST "\"}}\n", "3:38: 'source' of runtime 'l'", NULL, false},
        {"models: {m: {source: \"hf:a/b\", weights: w}}\nruntimes: {l: {engine: llama.cpp, source: system}}\nservices: {a: {runtime: l, model: m, port: 7770}}\n"
         "clients: {c: {format: json, file: c.json, url: \"http://[::1]:", "/v1\"}}\n", "6:48: 'url' of client 'c'", "; " RANGE, false},
    };
    static const char *const tried[] = {"65535", "0", "65536", "99999", "18446744073709551617"};
    for (size_t i = 0; i < BASE_COUNT(where); i++)
        for (size_t k = 0; k < BASE_COUNT(tried); k++) {
            base_autobuf struct buf text = BUF_INIT(2048), want = BUF_INIT(2048);
            buf_addf(&text, "version: 1\nname: r\n%s%s%s", where[i].before, tried[k], where[i].after);
            if (where[i].says)
                buf_addf(&want, "f.yaml:%s has the port '%s'%s", where[i].place, tried[k], where[i].says);
            else
                buf_addf(&want, "f.yaml:%s has a port that is none; " RANGE, where[i].place);
            if (k == 0 || (k == 1 && where[i].zero))
                fleet_free(parse(text.ptr, "f.yaml"));
            else
                assert_refused(buf_str(&text), want.ptr);
        }
}

/* What is no port is not taken for one. */
static void addresses_without_ports(void **state)
{
    (void)state;
    static const char *const good[] = {"http://h", "https://[2001:db8::7]/v1", "http://name:secret@h/x", "http://h:1", "h:65535/a:b", "http://h/a:0", "http://h?q=a:0", ""};
    static const char *const bad[] = {"http://h:/", "http://h:x/", "http://name:secret@h:0/x", "https://[::1]:65536", "h:70000/x", "http://h:-1", "http://h: 80"};
    struct str port;
    for (size_t i = 0; i < BASE_COUNT(good); i++)
        assert_false(fleet_has_bad_port(str_of(good[i]), &port));
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_true(fleet_has_bad_port(str_of(bad[i]), &port));
    assert_true(fleet_has_bad_port(STR("http://name:secret@h:080x/y"), &port));
    assert_true(str_eq_c(port, "080x"));
}

static void services_on_demand(void **state)
{
    (void)state;
    struct fleet *f = parse("version: 1\nname: r\nruntimes: {l: {engine: llama.cpp, source: system}}\nmodels: {m: {source: \"hf:a/b\", weights: w}}\n"
                            "services:\n  a: {runtime: l, model: m, port: 7770, start: on-demand, idle-stop: 1.5m, prompt-files: off}\n"
                            "  b: {runtime: l, model: m, port: 7771, start: on-demand, pin: true, preload: true}\n  c: {runtime: l, model: m, port: 7772}\n"
                            "groups:\n  one: {services: [a, b], rule: exclusive}\n  two: {services: [b], rule: together}\n",
                            "f.yaml");
    assert_int_equal(f->services[0].start, FLEET_ON_DEMAND);
    assert_int_equal(f->services[0].idle_stop_ms, 90000);
    assert_int_equal(f->services[0].prompt_files_bytes, 0);
    assert_int_equal(f->services[0].pin, FLEET_NO);
    assert_int_equal(f->services[1].idle_stop_ms, 0);
    assert_int_equal(f->services[1].pin, FLEET_YES);
    assert_int_equal(f->services[1].preload, FLEET_YES);
    assert_int_equal(f->services[1].prompt_files_bytes, FLEET_PROMPT_FILES);
    assert_int_equal(f->services[2].start, FLEET_ALWAYS);
    assert_int_equal(f->n_groups, 2);
    assert_int_equal(f->groups[0].rule, FLEET_EXCLUSIVE);
    assert_ptr_equal(f->groups[0].services[1], &f->services[1]);
    assert_int_equal(f->groups[1].rule, FLEET_TOGETHER);
    fleet_free(f);
}

/* What a process is started from has a number, however it is written. */
static void declared_hashes(void **state)
{
    (void)state;
    static const char head[] = "version: 1\nname: h\nruntimes: {r: {engine: llama.cpp, source: system}, q: {engine: llama.cpp, source: system}}\nmodels: {m: {source: \"file:.\", weights: %s}}\n"
                               "services: {a: {%s}}\n";
    static const struct {
        const char *weights, *service;
        bool same;
    } cases[] = {
        {"m.gguf", "{runtime: r, model: m, port: 7770, context: 4096, args: [\"-x\", \"1\"]}", true},
        {"\"m.gguf\"", "{port: 7770, args: [\"-x\", \"1\"], context: 4096, model: m, runtime: r}", true},
        {"m.gguf", "{runtime: r, model: m, port: 7770, context: 4096, args: [\"-x\", \"1\"], floor: 1GiB, reason: why}", true},
        {"m.gguf", "{runtime: q, model: m, port: 7770, context: 4096, args: [\"-x\", \"1\"]}", false},
        {"n.gguf", "{runtime: r, model: m, port: 7770, context: 4096, args: [\"-x\", \"1\"]}", false},
        {"m.gguf", "{runtime: r, model: m, port: 7771, context: 4096, args: [\"-x\", \"1\"]}", false},
        {"m.gguf", "{runtime: r, model: m, port: 7770, context: 4096, args: [\"1\", \"-x\"]}", false},
        {"m.gguf", "{runtime: r, model: m, port: 7770, context: 4096, args: [\"-x1\"]}", false},
        {"m.gguf", "{runtime: r, model: m, port: 7770, context: 4096}", false},
    };
    uint64_t first = 0;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        char text[1024];
        struct str s = {cases[i].service + 1, strlen(cases[i].service) - 2};
        char service[256];
        (void)snprintf(service, sizeof service, STR_FMT, STR_ARG(s));
        (void)snprintf(text, sizeof text, head, cases[i].weights, service);
        struct fleet *f = parse(text, "f.yaml");
        if (i == 0)
            first = f->services[0].declared_hash;
        assert_int_not_equal(f->services[0].declared_hash, 0);
        if ((f->services[0].declared_hash == first) != cases[i].same)
            fail_msg("case %zu", i);
        fleet_free(f);
    }
}

/* A service beside the router only clashes with it on the same machine. */
static void router_port_and_hosts(void **state)
{
    (void)state;
#define FAR_SERVICE                                                                                                     \
    "version: 1\nname: r\nhosts: {here: {}, big: {ssh: big}}\nruntimes: {l: {engine: llama.cpp, source: system}}\n"        \
    "models: {m: {source: \"hf:a/b\", weights: w}}\nservices: {a: {host: big, runtime: l, model: m, port: 8080}}\n"
    fleet_free(parse(FAR_SERVICE, "f.yaml"));
    fleet_free(parse(FAR_SERVICE "router: {host: here}\n", "f.yaml"));
    fleet_free(parse(FAR_SERVICE "router: {host: big, listen: 127.0.0.1:8081}\n", "f.yaml"));
    assert_refused(STR(FAR_SERVICE "router: {host: big}\n"), "f.yaml:6:55: port 8080 of service 'a' is the router's; choose another, or give the router one with 'listen'");
}

static void folders(void **state)
{
    (void)state;
    static const char text[] = "version: 1\nname: d\nmodels: {a: {source: \"file:x/\", weights: w}}\n";
    struct fleet *f = parse(text, "/f.yaml");
    assert_string_equal(f->dir, "/");
    assert_string_equal(f->models[0].source_arg, "/x");
    fleet_free(f);
    f = parse(text, "/a/b/f.yaml");
    assert_string_equal(f->dir, "/a/b");
    assert_string_equal(f->models[0].source_arg, "/a/b/x");
    fleet_free(f);
    base_autofree char *cwd = getcwd(NULL, 0);
    f = parse(text, "f.yaml");
    assert_string_equal(f->dir, cwd);
    fleet_free(f);
    f = parse(text, "./f.yaml");
    assert_string_equal(f->dir, cwd);
    fleet_free(f);
    f = parse(text, "./a/../f.yaml");
    assert_string_equal(f->dir, below_cwd("a/.."));
    fleet_free(f);
}

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "0", "qwen-27b", "a_b.c", "x23456789012345678901234567890123456789012345678901234567890123"};
    static const char *const bad[] = {"", "A", "a b", "-a", ".a", "_a", "a/b", "\xC3\xBC", "a\n", "..", "x234567890123456789012345678901234567890123456789012345678901234"};
    for (size_t i = 0; i < BASE_COUNT(good); i++)
        assert_true(fleet_name_valid(str_of(good[i])));
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_false(fleet_name_valid(str_of(bad[i])));
    assert_false(fleet_name_valid((struct str){"a\0b", 3}));
}

/* ---- files that are wrong ------------------------------------------------------------------------------------- */

static void bad_files(void **state)
{
    (void)state;
    glob_t g;
    assert_int_equal(glob("test/fleet/bad/*.yaml", 0, NULL, &g), 0);
    assert_true(g.gl_pathc >= 36);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        const char *path = g.gl_pathv[i];
        base_autobuf struct buf text = BUF_INIT(CONF_YAML_MAX);
        assert_int_equal(os_read_file(AT_FDCWD, path, &text, NULL), 0);
        struct str rest = buf_str(&text);
        struct str first = str_split(&rest, '\n');
        assert_true(str_starts(first, STR("# expect: ")));
        char want[2048];
        (void)snprintf(want, sizeof want, "%s:%.*s", path, (int)(first.len - 10), first.ptr + 10);
        struct fleet *f = NULL;
        struct err err = {0};
        assert_int_equal(fleet_load(path, &options, &f, &err), -EINVAL);
        assert_null(f);
        assert_string_equal(err.text, want);
    }
    globfree(&g);
}

static void files_that_cannot_be_read(void **state)
{
    (void)state;
    struct fleet *f = NULL;
    struct err err = {0};
    assert_int_equal(fleet_load("test/fleet/none.yaml", &options, &f, &err), -ENOENT);
    assert_non_null(strstr(err.text, "test/fleet/none.yaml"));
    assert_true(fleet_load("test/fleet", &options, &f, &err) < 0);
    assert_non_null(strstr(err.text, "test/fleet"));

    char dir[] = "/tmp/berth-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char path[64], want[128];
    (void)snprintf(path, sizeof path, "%s/big.yaml", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, CONF_YAML_MAX + 1), 0);
    close(fd);
    assert_int_equal(fleet_load(path, &options, &f, &err), -EINVAL);
    (void)snprintf(want, sizeof want, "%s:1:1: the file is larger than 1024 KiB", path);
    assert_string_equal(err.text, want);
    assert_null(f);
    unlink(path);
    rmdir(dir);
}

#define HEAD "version: 1\nname: x\nruntimes: {l: {engine: llama.cpp, source: system}, g: {engine: generic, source: system}}\n"
#define MODELS "models: {m: {source: \"hf:a/b\", weights: w}}\n"

/* Line 5 holds the one service; its keys end with the given ones. */
static void assert_service_refused(const char *keys, const char *want)
{
    base_autobuf struct buf b = BUF_INIT(CONF_YAML_MAX);
    buf_addf(&b, HEAD MODELS "services: {a: {runtime: l, model: m, port: 1, %s}}\n", keys);
    assert_int_equal(buf_status(&b), 0);
    assert_refused(buf_str(&b), want);
}

static void flags_that_are_ours(void **state)
{
    (void)state;
    static const struct {
        const char *flag, *say;
    } ours[] = {
        {"-m", "'-m'; use 'weights' of the model"},
        {"--mmproj", "'--mmproj'; use 'projector' of the model"},
        {"-md", "'-md'; use 'drafter' of the model"},
        {"-c", "'-c'; use 'context'"},
        {"-np", "'-np'; use 'slots'"},
        {"-ts", "'-ts'; use 'split'"},
        {"-ngl", "'-ngl'; use 'gpu-layers'"},
        {"--cache_type_v", "'--cache-type-v'; use 'kv'"},
        {"--port=80", "'--port'; use 'port'"},
        {"--host", "'--host'; use 'bind'"},
        {"--alias", "'--alias'; the service's own name is the alias"},
        {"-lv", "'-lv'; berth reads buffer sizes at 4; -v shows more"},
        {"--metrics", "'--metrics'; berth sets it itself"},
        {"-hf", "'-hf'; name where the files come from with 'source' of the model"},
        {"--version", "'--version'; it ends the engine at once"},
    };
    for (size_t i = 0; i < BASE_COUNT(ours); i++) {
        char keys[128], want[256];
        (void)snprintf(keys, sizeof keys, "args: [--jinja, \"%s\"]", ours[i].flag);
        (void)snprintf(want, sizeof want, "f.yaml:5:63: 'args' of service 'a' must not hold %s", ours[i].say);
        assert_service_refused(keys, want);
    }
    /* what only looks like one is the author's own: other cases, other flags, values */
    fleet_free(parse(HEAD MODELS "services: {a: {runtime: l, model: m, port: 1, args: [-C, --ctx, --model-x, m, c, \"-\", \"--\", \"=-m\", -n_p]}}\n", "f.yaml"));
}

static void texts_that_become_more(void **state)
{
    (void)state;
    assert_refused(STR("version: 1\nname: x\nhosts: {a: {ssh: \"a b\"}}\n"), "f.yaml:3:18: 'ssh' of host 'a' must be a target such as 'user@host', not 'a b'");
    assert_refused(STR("version: 1\nname: x\nhosts: {a: {ssh: a, address: 1.2.3.400}}\n"),
                   "f.yaml:3:30: 'address' of host 'a' must be a host name or an IP address without a port, not '1.2.3.400'");
    assert_refused(STR("version: 1\nname: x\nhosts: {here: {ssh: a}}\n"), "f.yaml:3:21: host 'here' is this machine; remove 'ssh' or choose another name");
    assert_refused(STR("version: 1\nname: \"a\\0b\"\n"), "f.yaml:2:7: 'name' of the fleet holds the control character 0x00; remove it");
    assert_refused(STR("version: 1\nname: \"a\\x9b\"\n"), "f.yaml:2:7: 'name' of the fleet holds the control character 0x9b; remove it");
    static const char *const bad[] = {"", "/w", "a/../w", "..", "./w", "a//w", "-w", "a/"};
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        char text[128], want[256];
        (void)snprintf(text, sizeof text, "version: 1\nname: x\nmodels: {m: {source: \"hf:a/b\", weights: \"%s\"}}\n", bad[i]);
        (void)snprintf(want, sizeof want,
                       "f.yaml:3:41: 'weights' of model 'm' must be a path inside the model's source, without '..' and not beginning with '/' or '-', not '%s'",
                       bad[i]);
        assert_refused(str_of(text), want);
    }
    static const char *const hubs[] = {"hf:", "hf:a", "hf:a/b/c", "hf:/b", "hf:a/", "hf:a/b@", "hf:a/../b", "hf:-a/b", "hf:a/b@x..y", "hf:a/b c", "hf:a/b@-x"};
    for (size_t i = 0; i < BASE_COUNT(hubs); i++) {
        char text[128], want[256];
        (void)snprintf(text, sizeof text, "version: 1\nname: x\nmodels: {m: {source: \"%s\", weights: w}}\n", hubs[i]);
        (void)snprintf(want, sizeof want, "f.yaml:3:22: 'source' of model 'm' must be 'hf:ORG/REPO' or 'hf:ORG/REPO@REVISION', not '%s'", hubs[i]);
        assert_refused(str_of(text), want);
    }
    /* no list is too long to read, and what is shown of a text has an end */
    base_autobuf struct buf b = BUF_INIT(CONF_YAML_MAX);
    buf_add_c(&b, "version: 1\nname: ");
    for (int i = 0; i < 500; i++)
        buf_add_c(&b, "X");
    struct fleet *f = NULL;
    struct err err = {0};
    assert_int_equal(fleet_parse(buf_str(&b), "f.yaml", &options, &f, &err), -EINVAL);
    assert_true(strlen(err.text) < 300);
}

static void numbers(void **state)
{
    (void)state;
    static const char *const bad[] = {"-1", "1.5", "0x10", "1e3", "+1", "18446744073709551616", "2147483648", "0", "''", "one", "1 2"};
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        char keys[64], want[256];
        (void)snprintf(keys, sizeof keys, "context: %s", bad[i]);
        (void)snprintf(want, sizeof want, "f.yaml:5:56: 'context' of service 'a' must be a whole number from 1 to 2147483647, not '%s'",
                       strcmp(bad[i], "''") == 0 ? "" : bad[i]);
        assert_service_refused(keys, want);
    }
    static const char *const shares[] = {"-1", ".", "1.", ".5", "1.1234567", "1000001", "nan", "inf", "1e3", "\"1\""};
    for (size_t i = 0; i < BASE_COUNT(shares); i++) {
        char keys[64];
        (void)snprintf(keys, sizeof keys, "split: [1, %s , 1]", shares[i]);
        assert_service_refused(keys, "f.yaml:5:58: item 2 of 'split' of service 'a' must be a share from 0 to 1000000, such as 36 or 29.5");
    }
    assert_service_refused("prompt-cache: 99999999999TiB", "f.yaml:5:61: 'prompt-cache' of service 'a' is too large: '99999999999TiB'");
    assert_service_refused("prompt-cache: ", "f.yaml:5:61: 'prompt-cache' of service 'a' has no value; give it one or remove it");
}

/* ---- bounds -------------------------------------------------------------------------------------------------------- */

static void bounds(void **state)
{
    (void)state;
    base_autobuf struct buf keys = BUF_INIT(CONF_YAML_MAX);
    buf_add_c(&keys, "args: [");
    for (int i = 0; i < FLEET_ARGS_MAX + 1; i++)
        buf_add_c(&keys, "x, ");
    buf_add_c(&keys, "]");
    assert_service_refused(keys.ptr, "f.yaml:5:53: 'args' of service 'a' has 257 items; at most 256 are allowed");
    buf_clear(&keys);
    buf_add_c(&keys, "env: {");
    for (int i = 0; i < FLEET_ARGS_MAX + 1; i++)
        buf_addf(&keys, "X%d: x, ", i);
    buf_add_c(&keys, "}");
    assert_service_refused(keys.ptr, "f.yaml:5:52: 'env' of service 'a' has 257 names; at most 256 are allowed");
    buf_clear(&keys);
    buf_add_c(&keys, "args: [\"");
    for (int i = 0; i < FLEET_TEXT_MAX + 1; i++)
        buf_add_char(&keys, 'x');
    buf_add_c(&keys, "\"]");
    assert_service_refused(keys.ptr, "f.yaml:5:54: item 1 of 'args' of service 'a' is longer than 32768 bytes");

    base_autobuf struct buf b = BUF_INIT(CONF_YAML_MAX);
    buf_add_c(&b, "version: 1\nname: x\nmodels:\n");
    for (int i = 0; i < FLEET_SERVICES_MAX + 1; i++)
        buf_addf(&b, "  m%d: {source: \"hf:a/b\", weights: w}\n", i);
    assert_refused(buf_str(&b), "f.yaml:4:3: 'models' of the fleet has 1025 parts; at most 1024 are allowed");
    buf_clear(&b);
    buf_add_c(&b, "version: 1\nname: x\nhosts:\n  a:\n    devices:\n");
    for (int i = 0; i < FLEET_DEVICES_MAX + 1; i++)
        buf_addf(&b, "      - {name: CUDA%d, memory: 8GiB}\n", i);
    assert_refused(buf_str(&b), "f.yaml:6:7: 'devices' of host 'a' has 65 items; at most 64 are allowed");
}

/* The largest fleet that the bounds allow is read in a moment. */
static void a_large_fleet(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(CONF_YAML_MAX);
    buf_add_c(&b, HEAD MODELS "services:\n");
    for (int i = 0; i < FLEET_SERVICES_MAX; i++)
        buf_addf(&b, "  s%d: {runtime: l, model: m, port: %d, args: [a, b]}\n", i, 10000 + i);
    buf_add_c(&b, "endpoints:\n");
    for (int i = 0; i < FLEET_SERVICES_MAX; i++) {
        buf_addf(&b, "  e%d: {services: [s%d], aliases: [", i, i);
        for (int k = 0; k < 40; k++)
            buf_addf(&b, "a%d-%d,", i, k);
        buf_add_c(&b, "]}\n");
    }
    assert_int_equal(buf_status(&b), 0);
    clock_t start = clock();
    struct fleet *f = parse(b.ptr, "f.yaml");
    assert_true((clock() - start) / CLOCKS_PER_SEC < 4);
    assert_int_equal(f->n_services, FLEET_SERVICES_MAX);
    assert_int_equal(f->endpoints[FLEET_SERVICES_MAX - 1].n_aliases, 40);
    fleet_free(f);
}

/* ---- the reference --------------------------------------------------------------------------------------------------- */

static void read_docs(struct buf *docs)
{
    struct err err = {0};
    if (os_read_file(AT_FDCWD, "docs/fleet.md", docs, &err) < 0)
        fail_msg("%s", err.text);
}

static void docs_example_loads(void **state)
{
    (void)state;
    base_autobuf struct buf docs = BUF_INIT(1 << 20);
    read_docs(&docs);
    struct str rest = buf_str(&docs);
    ptrdiff_t at = str_find(rest, STR("```yaml\n"));
    assert_true(at >= 0);
    rest = (struct str){rest.ptr + at + 8, rest.len - (size_t)at - 8};
    ptrdiff_t end = str_find(rest, STR("```\n"));
    assert_true(end > 0);
    struct fleet *f = NULL;
    struct err err = {0};
    if (fleet_parse((struct str){rest.ptr, (size_t)end}, "docs/fleet.md", &options, &f, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(f->n_services, 3);
    assert_int_equal(f->n_endpoints, 2);
    fleet_free(f);
}

/* The section under a heading, up to the next one. */
static struct str docs_section(struct str docs, const char *heading)
{
    char line[64];
    (void)snprintf(line, sizeof line, "\n## %s\n", heading);
    ptrdiff_t at = str_find(docs, str_of(line));
    if (at < 0)
        fail_msg("docs/fleet.md has no section '%s'", heading);
    struct str s = {docs.ptr + at + strlen(line), docs.len - (size_t)at - strlen(line)};
    ptrdiff_t end = str_find(s, STR("\n## "));
    if (end >= 0)
        s.len = (size_t)end;
    return s;
}

/* The rows of the section's tables are the keys of the schema, in its order, required ones marked so. */
static void compare_docs(struct str docs, const char *heading, const struct fleet_schema *schema)
{
    struct str s = docs_section(docs, heading);
    size_t n = 0;
    while (s.ptr) {
        struct str line = str_split(&s, '\n');
        if (!str_starts(line, STR("| `")))
            continue;
        struct str key = {line.ptr + 3, line.len - 3};
        key = str_split(&key, '`');
        if (n >= schema->n || !str_eq_c(key, schema->keys[n].name))
            fail_msg("docs/fleet.md, %s: '%.*s' where the schema has '%s'", heading, STR_ARG(key), n < schema->n ? schema->keys[n].name : "nothing");
        if (schema->keys[n].required && str_find(line, STR("| required |")) < 0)
            fail_msg("docs/fleet.md, %s: '%.*s' is required", heading, STR_ARG(key));
        n++;
    }
    if (n != schema->n)
        fail_msg("docs/fleet.md, %s: '%s' is missing", heading, schema->keys[n].name);
}

static void docs_name_every_key(void **state)
{
    (void)state;
    base_autobuf struct buf docs = BUF_INIT(1 << 20);
    read_docs(&docs);
    struct str text = buf_str(&docs);
    compare_docs(text, "The file", &fleet_schema_root);
    compare_docs(text, "hosts", &fleet_schema_host);
    compare_docs(text, "devices", &fleet_schema_device);
    compare_docs(text, "runtimes", &fleet_schema_runtime);
    compare_docs(text, "models", &fleet_schema_model);
    compare_docs(text, "services", &fleet_schema_service);
    compare_docs(text, "kv", &fleet_schema_kv);
    compare_docs(text, "serves", &fleet_schema_serves);
    compare_docs(text, "vllm", &fleet_schema_vllm);
    compare_docs(text, "endpoints", &fleet_schema_endpoint);
    compare_docs(text, "clients", &fleet_schema_client);
    compare_docs(text, "router", &fleet_schema_router);
    compare_docs(text, "tls", &fleet_schema_tls);
    compare_docs(text, "bodies", &fleet_schema_bodies);
}

/* ---- memory -------------------------------------------------------------------------------------------------------------- */

/* Of a file in the middle of an edit too; but never a guess between two. */
static void name_of_what_is_no_yaml(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name;
    } cases[] = {
        {"version: 1\nname: home # mine\nservices:\n - x: [\n", "home"},
        {"name: home\nname: other\n - x: [\n", NULL},
        {"version: 1\n name: home\n - x: [\n", NULL},
        {"name: ../x\n - x: [\n", NULL},
        {"name:\n - x: [\n", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char path[] = "/tmp/test-fleet-XXXXXX", name[FLEET_NAME_MAX + 1] = "";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        assert_int_equal(os_write_all(fd, cases[i].text, strlen(cases[i].text), NULL), 0);
        (void)close(fd);
        assert_int_equal(fleet_name_of(path, name), cases[i].name ? 0 : -EINVAL);
        (void)unlink(path);
        assert_string_equal(name, cases[i].name ? cases[i].name : "");
    }
}

static void survives_without_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    static const char *const files[] = {"test/fleet/good/full.yaml", "test/fleet/good/one-service.yaml", "test/fleet/bad/040-ref-model.yaml",
                                        "test/fleet/bad/075-unit.yaml"};
    for (size_t i = 0; i < BASE_COUNT(files); i++) {
        base_autobuf struct buf text = BUF_INIT(CONF_YAML_MAX);
        assert_int_equal(os_read_file(AT_FDCWD, files[i], &text, NULL), 0);
        bool failed = true;
        for (long n = 0; failed; n++) {
            assert_true(n < 100000);
            struct fleet *f = NULL;
            struct err err = {0};
            failing_arm(n);
            int rc = fleet_parse(buf_str(&text), "f.yaml", &options, &f, &err);
            fleet_free(f);
            assert_int_equal(failing_disarm(&failed), 0);
            int want = i < 2 ? 0 : -EINVAL;
            /* in the name of a part, which only messages use, "?" may stand for what had no memory */
            if (rc != want)
                assert_int_equal(rc, failed ? -ENOMEM : want);
            assert_int_equal(err.code, rc);
        }
    }
#else
    skip();
#endif
}

int main(void)
{
    options = engine_fleet_options();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minimal),
        cmocka_unit_test(one_service_with_defaults),
        cmocka_unit_test(full_hosts_and_sources),
        cmocka_unit_test(full_service),
        cmocka_unit_test(full_pinned_runtimes), cmocka_unit_test(full_endpoints_and_router), cmocka_unit_test(full_clients_and_documents),
        cmocka_unit_test(router_forms),
        cmocka_unit_test(ports),
        cmocka_unit_test(addresses_without_ports),
        cmocka_unit_test(services_on_demand),
        cmocka_unit_test(declared_hashes),
        cmocka_unit_test(router_port_and_hosts),
        cmocka_unit_test(folders),
        cmocka_unit_test(names),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(flags_that_are_ours),
        cmocka_unit_test(texts_that_become_more),
        cmocka_unit_test(numbers),
        cmocka_unit_test(bounds),
        cmocka_unit_test(a_large_fleet),
        cmocka_unit_test(docs_example_loads),
        cmocka_unit_test(docs_name_every_key),
        cmocka_unit_test(name_of_what_is_no_yaml),
        cmocka_unit_test(survives_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
