/* SPDX-License-Identifier: MIT
 *
 * Every key of fleet.yaml: the authority for what may be written, where it goes and what is required. docs/fleet.md
 * describes the same keys; a test compares the two. What a key means beside its form is in fleet.h.
 */
#include "fleet_int.h"

#define AT(type, member) offsetof(struct type, member)
#define SHAPE(member) offsetof(struct fleet_service, shape.member)
#define SCHEMA(keys) {(keys), BASE_COUNT(keys)}

#define TOKENS_MAX 2147483647 /* the engines count tokens in a signed 32-bit number */
#define LAYERS_MAX 10000      /* more than any model has: "all" to an engine */
#define THREADS_MAX 1024
#define GRAPHS_MAX 10000      /* one for each batch size that is captured */

static const char *const scopes[] = {"system", "user", NULL};
static const char *const answers[] = {"false", "true", NULL};
static const char *const units[] = {"child", "systemd", "quadlet", NULL};
static const char *const router_units[] = {"child", "systemd", NULL};
static const char *const tristates[] = {"auto", "on", "off", NULL};
static const char *const starts[] = {"always", "on-demand", NULL};
static const char *const group_rules[] = {"exclusive", "together", NULL};
static const char *const formats[] = {"opencode", "continue", "aider", "litellm", "json", NULL};
static const char *const networks[] = {"host", "bridge", NULL};
static const char *const policies[] = {"adaptive", "counter", "roundrobin", "least", "hash", "sticky", NULL};

const char *fleet_policy_name(enum fleet_policy p)
{
    return policies[p];
}

const char *fleet_format_name(enum fleet_format f)
{
    return formats[f];
}

/* A word is stored as an unsigned; the enums must be as wide. */
_Static_assert(sizeof(enum fleet_scope) == sizeof(unsigned) && sizeof(enum fleet_unit) == sizeof(unsigned) &&
                   sizeof(enum fleet_tristate) == sizeof(unsigned) && sizeof(enum fleet_answer) == sizeof(unsigned) && sizeof(enum fleet_policy) == sizeof(unsigned) &&
                   sizeof(enum fleet_start) == sizeof(unsigned) && sizeof(enum fleet_group_rule) == sizeof(unsigned) &&
                   sizeof(enum fleet_format) == sizeof(unsigned) && sizeof(enum fleet_network) == sizeof(unsigned),
               "enums are unsigned");

static const struct fleet_key root_keys[] = {
    {.name = "version", .type = FLEET_T_OWN, .required = "1", .read = fleet_read_version},
    {.name = "name", .type = FLEET_T_TEXT, .required = "home", .at = AT(fleet, name), .check = fleet_check_name},
    {.name = "hosts", .type = FLEET_T_SECTION},
    {.name = "runtimes", .type = FLEET_T_SECTION},
    {.name = "models", .type = FLEET_T_SECTION},
    {.name = "services", .type = FLEET_T_SECTION},
    {.name = "endpoints", .type = FLEET_T_SECTION},
    {.name = "groups", .type = FLEET_T_SECTION},
    {.name = "clients", .type = FLEET_T_SECTION},
    {.name = "documents", .type = FLEET_T_OWN, .read = fleet_read_documents},
    {.name = "router", .type = FLEET_T_SECTION},
};

static const struct fleet_key host_keys[] = {
    {.name = "ssh", .type = FLEET_T_TEXT, .at = AT(fleet_host, ssh), .check = fleet_check_ssh},
    {.name = "address", .type = FLEET_T_TEXT, .at = AT(fleet_host, address), .check = fleet_check_address},
    {.name = "scope", .type = FLEET_T_WORD, .at = AT(fleet_host, scope), .words = scopes},
    {.name = "memory", .type = FLEET_T_BYTES, .at = AT(fleet_host, memory_bytes), .min = 1},
    {.name = "bandwidth", .type = FLEET_T_RATE, .at = AT(fleet_host, bandwidth_bytes_s)},
    {.name = "floor", .type = FLEET_T_BYTES, .at = AT(fleet_host, floor_bytes)},
    {.name = "slack", .type = FLEET_T_BYTES, .at = AT(fleet_host, slack_bytes), .min = 1},
    {.name = "firewall", .type = FLEET_T_OWN, .read = fleet_read_firewall},
    {.name = "devices", .type = FLEET_T_OWN, .read = fleet_read_devices},
};

static const struct fleet_key device_keys[] = {
    {.name = "name", .type = FLEET_T_TEXT, .required = "ROCm0", .at = AT(fleet_device, name), .check = fleet_check_device},
    {.name = "memory", .type = FLEET_T_BYTES, .required = "24GiB", .at = AT(fleet_device, memory_bytes), .min = 1},
    {.name = "pci", .type = FLEET_T_TEXT, .at = AT(fleet_device, pci), .check = fleet_check_pci},
    {.name = "bandwidth", .type = FLEET_T_RATE, .at = AT(fleet_device, bandwidth_bytes_s)},
    {.name = "link", .type = FLEET_T_RATE, .at = AT(fleet_device, link_bytes_s)},
    {.name = "shared", .type = FLEET_T_WORD, .at = AT(fleet_device, shared), .words = answers},
};

static const struct fleet_key runtime_keys[] = {
    {.name = "engine", .type = FLEET_T_TEXT, .required = "llama.cpp", .at = AT(fleet_runtime, engine), .check = fleet_check_engine},
    {.name = "source", .type = FLEET_T_OWN, .required = "debian:forky", .read = fleet_read_runtime_source},
    {.name = "packages", .type = FLEET_T_LIST, .at = AT(fleet_runtime, packages), .set_at = AT(fleet_runtime, n_packages), .min = 1,
     .max = FLEET_PACKAGES_MAX, .check = fleet_check_package},
};

static const struct fleet_key model_keys[] = {
    {.name = "source", .type = FLEET_T_OWN, .required = "file:models", .read = fleet_read_model_source},
    {.name = "weights", .type = FLEET_T_TEXT, .required = "model.gguf", .at = AT(fleet_model, weights), .check = fleet_check_file},
    {.name = "projector", .type = FLEET_T_TEXT, .at = AT(fleet_model, projector), .check = fleet_check_file},
    {.name = "drafter", .type = FLEET_T_TEXT, .at = AT(fleet_model, drafter), .check = fleet_check_file},
    {.name = "template", .type = FLEET_T_OWN, .read = fleet_read_template},
    {.name = "reasoning", .type = FLEET_T_OWN, .read = fleet_read_reasoning},
};

static const struct fleet_key service_keys[] = {
    {.name = "host", .type = FLEET_T_OWN, .read = fleet_read_host_ref},
    {.name = "runtime", .type = FLEET_T_OWN, .required = "llama", .read = fleet_read_runtime_ref},
    {.name = "model", .type = FLEET_T_OWN, .read = fleet_read_model_ref},
    {.name = "port", .type = FLEET_T_PORT, .at = AT(fleet_service, port), .min = 1, .max = UINT16_MAX},
    {.name = "bind", .type = FLEET_T_OWN, .read = fleet_read_bind},
    {.name = "key", .type = FLEET_T_OWN, .read = fleet_read_service_key},
    {.name = "context", .type = FLEET_T_NUMBER, .at = SHAPE(context), .set_at = FLEET_NOWHERE, .min = 1, .max = TOKENS_MAX},
    {.name = "slots", .type = FLEET_T_NUMBER, .at = SHAPE(slots), .set_at = FLEET_NOWHERE, .min = 1, .max = FLEET_SLOTS_MAX},
    {.name = "split", .type = FLEET_T_OWN, .read = fleet_read_split},
    {.name = "gpu-layers", .type = FLEET_T_NUMBER, .at = SHAPE(gpu_layers), .set_at = SHAPE(gpu_layers_set), .max = LAYERS_MAX},
    {.name = "batch", .type = FLEET_T_NUMBER, .at = SHAPE(batch), .set_at = FLEET_NOWHERE, .min = 1, .max = TOKENS_MAX},
    {.name = "ubatch", .type = FLEET_T_NUMBER, .at = SHAPE(ubatch), .set_at = FLEET_NOWHERE, .min = 1, .max = TOKENS_MAX},
    {.name = "kv", .type = FLEET_T_OWN, .read = fleet_read_kv},
    {.name = "flash-attention", .type = FLEET_T_WORD, .at = SHAPE(flash_attention), .words = tristates},
    {.name = "unified-kv", .type = FLEET_T_WORD, .at = SHAPE(unified_kv), .words = tristates},
    {.name = "prompt-cache", .type = FLEET_T_OWN, .read = fleet_read_prompt_cache},
    {.name = "speculative", .type = FLEET_T_LIST, .at = SHAPE(speculative), .set_at = SHAPE(n_speculative), .min = 1, .max = FLEET_SPEC_MAX,
     .check = fleet_check_word},
    {.name = "draft-max", .type = FLEET_T_NUMBER, .at = SHAPE(draft_max), .set_at = FLEET_NOWHERE, .min = 1, .max = 1024},
    {.name = "threads", .type = FLEET_T_NUMBER, .at = SHAPE(threads), .set_at = FLEET_NOWHERE, .min = 1, .max = THREADS_MAX},
    {.name = "unit", .type = FLEET_T_WORD, .at = AT(fleet_service, unit), .words = units},
    {.name = "args", .type = FLEET_T_LIST, .at = AT(fleet_service, args), .set_at = AT(fleet_service, n_args), .max = FLEET_ARGS_MAX},
    {.name = "env", .type = FLEET_T_OWN, .read = fleet_read_env},
    {.name = "credentials", .type = FLEET_T_OWN, .read = fleet_read_credentials},
    {.name = "floor", .type = FLEET_T_OWN, .read = fleet_read_floor},
    {.name = "slack", .type = FLEET_T_BYTES, .at = AT(fleet_service, slack_bytes), .min = 1},
    {.name = "reason", .type = FLEET_T_TEXT, .at = AT(fleet_service, reason)},
    {.name = "start", .type = FLEET_T_WORD, .at = AT(fleet_service, start), .words = starts},
    {.name = "idle-stop", .type = FLEET_T_TIME, .at = AT(fleet_service, idle_stop_ms), .min = 1000},
    {.name = "pin", .type = FLEET_T_WORD, .at = AT(fleet_service, pin), .words = answers},
    {.name = "preload", .type = FLEET_T_WORD, .at = AT(fleet_service, preload), .words = answers},
    {.name = "prompt-files", .type = FLEET_T_OWN, .read = fleet_read_prompt_files},
    {.name = "serves", .type = FLEET_T_OWN, .read = fleet_read_serves},
    {.name = "vllm", .type = FLEET_T_OWN, .read = fleet_read_vllm},
    {.name = "command", .type = FLEET_T_LIST, .at = AT(fleet_service, command), .set_at = AT(fleet_service, n_command), .min = 1,
     .max = FLEET_ARGS_MAX},
    {.name = "health", .type = FLEET_T_TEXT, .at = AT(fleet_service, health), .check = fleet_check_url_path},
    {.name = "identity", .type = FLEET_T_TEXT, .at = AT(fleet_service, identity), .check = fleet_check_url_path},
};

static const struct fleet_key kv_keys[] = {
    {.name = "k", .type = FLEET_T_TEXT, .at = AT(fleet_shape, kv_k), .check = fleet_check_word},
    {.name = "v", .type = FLEET_T_TEXT, .at = AT(fleet_shape, kv_v), .check = fleet_check_word},
};

static const struct fleet_key serves_keys[] = {
    {.name = "tools", .type = FLEET_T_WORD, .at = AT(fleet_serves, tools), .words = answers},
    {.name = "reasoning", .type = FLEET_T_WORD, .at = AT(fleet_serves, reasoning), .words = answers},
    {.name = "images", .type = FLEET_T_WORD, .at = AT(fleet_serves, images), .words = answers},
    {.name = "sound", .type = FLEET_T_WORD, .at = AT(fleet_serves, sound), .words = answers},
    {.name = "efforts", .type = FLEET_T_LIST, .at = AT(fleet_serves, efforts), .set_at = AT(fleet_serves, n_efforts), .min = 1, .max = FLEET_EFFORTS_MAX, .check = fleet_check_word},
};

static const struct fleet_key vllm_keys[] = {
    {.name = "free-at-init", .type = FLEET_T_BYTES, .required = "31.23GiB", .at = AT(fleet_vllm, free_at_init_bytes), .min = 1},
    {.name = "weights", .type = FLEET_T_BYTES, .at = AT(fleet_vllm, weight_bytes)},
    {.name = "overhead", .type = FLEET_T_BYTES, .at = AT(fleet_vllm, overhead_bytes)},
    {.name = "graphs", .type = FLEET_T_NUMBER, .at = AT(fleet_vllm, graphs), .set_at = FLEET_NOWHERE, .max = GRAPHS_MAX},
    {.name = "graph", .type = FLEET_T_BYTES, .at = AT(fleet_vllm, graph_bytes)},
    {.name = "kv-reserve", .type = FLEET_T_BYTES, .at = AT(fleet_vllm, kv_reserve_bytes)},
    {.name = "expert-slot", .type = FLEET_T_BYTES, .at = AT(fleet_vllm, expert_slot_bytes)},
    {.name = "token", .type = FLEET_T_BYTES, .at = AT(fleet_vllm, token_bytes)},
    {.name = "block", .type = FLEET_T_NUMBER, .at = AT(fleet_vllm, block_tokens), .set_at = FLEET_NOWHERE, .min = 1, .max = TOKENS_MAX},
};

static const struct fleet_key endpoint_keys[] = {
    {.name = "services", .type = FLEET_T_OWN, .required = "[a]", .read = fleet_read_service_refs},
    {.name = "policy", .type = FLEET_T_WORD, .at = AT(fleet_endpoint, policy), .words = policies},
    {.name = "aliases", .type = FLEET_T_LIST, .at = AT(fleet_endpoint, aliases), .set_at = AT(fleet_endpoint, n_aliases),
     .max = FLEET_ALIASES_MAX, .check = fleet_check_model_name},
};

static const struct fleet_key group_keys[] = {
    {.name = "services", .type = FLEET_T_OWN, .required = "[a, b]", .read = fleet_read_group_services},
    {.name = "rule", .type = FLEET_T_WORD, .required = "exclusive", .at = AT(fleet_group, rule), .words = group_rules},
};

static const struct fleet_key client_keys[] = {
    {.name = "format", .type = FLEET_T_WORD, .required = "opencode", .at = AT(fleet_client, format), .words = formats},
    {.name = "file", .type = FLEET_T_OWN, .required = "clients/opencode.json", .read = fleet_read_client_file},
    {.name = "from", .type = FLEET_T_OWN, .read = fleet_read_client_from},
    {.name = "network", .type = FLEET_T_WORD, .at = AT(fleet_client, network), .words = networks},
    {.name = "url", .type = FLEET_T_TEXT, .at = AT(fleet_client, url), .check = fleet_check_client_url},
    {.name = "key-env", .type = FLEET_T_TEXT, .at = AT(fleet_client, key_env), .check = fleet_check_variable},
    {.name = "endpoints", .type = FLEET_T_OWN, .read = fleet_read_client_endpoints},
    {.name = "output", .type = FLEET_T_NUMBER, .at = AT(fleet_client, output), .set_at = FLEET_NOWHERE, .min = 1, .max = TOKENS_MAX},
    {.name = "compact", .type = FLEET_T_NUMBER, .at = AT(fleet_client, compact), .set_at = FLEET_NOWHERE, .min = 1, .max = 100},
};

static const struct fleet_key router_keys[] = {
    {.name = "host", .type = FLEET_T_OWN, .read = fleet_read_router_host},
    {.name = "listen", .type = FLEET_T_OWN, .read = fleet_read_listen},
    {.name = "group", .type = FLEET_T_TEXT, .at = AT(fleet_router, group), .check = fleet_check_word},
    {.name = "tls", .type = FLEET_T_OWN, .read = fleet_read_tls},
    {.name = "loops", .type = FLEET_T_NUMBER, .at = AT(fleet_router, loops), .set_at = FLEET_NOWHERE, .min = 1, .max = FLEET_ROUTER_LOOPS_MAX},
    {.name = "unit", .type = FLEET_T_WORD, .at = AT(fleet_router, unit), .words = router_units},
    {.name = "conversation-headers", .type = FLEET_T_LIST, .at = AT(fleet_router, conversation_headers), .set_at = AT(fleet_router, n_conversation_headers), .min = 1,
     .max = FLEET_HEADERS_MAX, .check = fleet_check_header},
    {.name = "admin", .type = FLEET_T_OWN, .read = fleet_read_admin},
    {.name = "keys-file", .type = FLEET_T_OWN, .read = fleet_read_keys_file},
    {.name = "cors", .type = FLEET_T_LIST, .at = AT(fleet_router, cors), .set_at = AT(fleet_router, n_cors), .min = 1, .max = FLEET_CORS_MAX, .check = fleet_check_origin},
    {.name = "bodies", .type = FLEET_T_OWN, .read = fleet_read_bodies},
};

static const struct fleet_key bodies_keys[] = {
    {.name = "max", .type = FLEET_T_BYTES, .at = AT(fleet_bodies, max_bytes), .min = 1024},
    {.name = "spill", .type = FLEET_T_BYTES, .at = AT(fleet_bodies, spill_bytes)},
    {.name = "memory", .type = FLEET_T_BYTES, .at = AT(fleet_bodies, memory_bytes), .min = 1024},
    {.name = "disk", .type = FLEET_T_BYTES, .at = AT(fleet_bodies, disk_bytes)},
};

static const struct fleet_key tls_keys[] = {
    {.name = "certificate", .type = FLEET_T_OWN, .required = "tls/fullchain.pem", .read = fleet_read_certificate},
    {.name = "key", .type = FLEET_T_OWN, .required = "tls/key.pem", .read = fleet_read_key},
};

const struct fleet_schema fleet_schema_root = SCHEMA(root_keys);
const struct fleet_schema fleet_schema_host = SCHEMA(host_keys);
const struct fleet_schema fleet_schema_device = SCHEMA(device_keys);
const struct fleet_schema fleet_schema_runtime = SCHEMA(runtime_keys);
const struct fleet_schema fleet_schema_model = SCHEMA(model_keys);
const struct fleet_schema fleet_schema_service = SCHEMA(service_keys);
const struct fleet_schema fleet_schema_kv = SCHEMA(kv_keys);
const struct fleet_schema fleet_schema_serves = SCHEMA(serves_keys);
const struct fleet_schema fleet_schema_vllm = SCHEMA(vllm_keys);
const struct fleet_schema fleet_schema_endpoint = SCHEMA(endpoint_keys);
const struct fleet_schema fleet_schema_group = SCHEMA(group_keys);
const struct fleet_schema fleet_schema_client = SCHEMA(client_keys);
const struct fleet_schema fleet_schema_router = SCHEMA(router_keys);
const struct fleet_schema fleet_schema_tls = SCHEMA(tls_keys);
const struct fleet_schema fleet_schema_bodies = SCHEMA(bodies_keys);

static void service_defaults(void *part)
{
    struct fleet_service *s = part;
    s->bind = "127.0.0.1";
    s->shape.slots = 1;
    s->shape.split_auto = true;
    s->prompt_files_bytes = FLEET_PROMPT_FILES;
}

static void client_defaults(void *part)
{
    struct fleet_client *c = part;
    c->compact = FLEET_COMPACT;
}

#define SECTION(type, items, n_items) \
    .size = sizeof(struct type), .pos_at = AT(type, pos), .items_at = AT(fleet, items), .count_at = AT(fleet, n_items)

const struct fleet_section fleet_sections[] = {
    {.key = "hosts", .what = "host", .schema = &fleet_schema_host, SECTION(fleet_host, hosts, n_hosts), .check_name = fleet_check_name,
     .rules = fleet_rules_host},
    {.key = "runtimes", .what = "runtime", .schema = &fleet_schema_runtime, SECTION(fleet_runtime, runtimes, n_runtimes),
     .check_name = fleet_check_name, .rules = fleet_rules_runtime},
    {.key = "models", .what = "model", .schema = &fleet_schema_model, SECTION(fleet_model, models, n_models), .check_name = fleet_check_name},
    {.key = "services", .what = "service", .schema = &fleet_schema_service, SECTION(fleet_service, services, n_services),
     .check_name = fleet_check_service_name, .defaults = service_defaults, .rules = fleet_rules_service},
    {.key = "endpoints", .what = "endpoint", .schema = &fleet_schema_endpoint, SECTION(fleet_endpoint, endpoints, n_endpoints),
     .check_name = fleet_check_model_name},
    {.key = "groups", .what = "group", .schema = &fleet_schema_group, SECTION(fleet_group, groups, n_groups), .check_name = fleet_check_name,
     .rules = fleet_rules_group},
    {.key = "clients", .what = "client", .schema = &fleet_schema_client, SECTION(fleet_client, clients, n_clients), .check_name = fleet_check_name,
     .defaults = client_defaults, .rules = fleet_rules_client},
};
const size_t fleet_n_sections = BASE_COUNT(fleet_sections);
