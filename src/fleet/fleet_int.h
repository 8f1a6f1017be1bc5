/* SPDX-License-Identifier: MIT
 *
 * Shared inside fleet only. A schema is a table of keys; fleet_read_part walks a YAML map with it and fills a struct. What a
 * table cannot say (references, sources, rules between keys) is said by functions that the table names, and by the rules in
 * fleet_rules.c and fleet_ports.c, which run when a part, or everything, is read.
 *
 * The reader keeps the name of what it is reading, so that every message can say it.
 */
#pragma once

#include <conf/conf.h>
#include <fleet/fleet.h>

#define FLEET_TEXT_MAX 32768   /* bytes of one value: an engine flag may hold a template or a grammar */
#define FLEET_ALIASES_MAX 256  /* of one endpoint */
#define FLEET_PACKAGES_MAX 256 /* of one runtime */
#define FLEET_SPEC_MAX 8       /* speculation types of one service; the engine knows ten, few of which go together */
#define FLEET_CORS_MAX 64      /* origins */
#define FLEET_REASONING_MAX 16 /* words for how hard a model thinks; engines know some six */
#define FLEET_DOCUMENTS_MAX 256
#define FLEET_SHOW_MAX 80      /* characters of outside text in a message */
#define FLEET_MEMORY_MAX ((size_t)32 * 1024 * 1024) /* everything that one fleet holds; a file is at most a mebibyte */

struct fleet_reader {
    struct arena *arena;   /* of the fleet */
    struct fleet *fleet;   /* what has been read so far */
    const struct fleet_options *opt;
    const struct yaml_node *root;
    struct err *err;
    /* what is being read, for messages */
    const char *of;  /* "service 'a'" */
    const char *key; /* "port"; NULL outside a key */
    size_t item;     /* of a list, from 1; 0 outside */
};

/* How a value is written and what it becomes in the struct. */
enum fleet_type {
    FLEET_T_TEXT,    /* const char * */
    FLEET_T_NUMBER,  /* uint32_t, min to max; set_at is a bool */
    FLEET_T_PORT,    /* uint16_t, min to max */
    FLEET_T_BYTES,   /* uint64_t, at least min, written with a unit */
    FLEET_T_RATE,    /* uint64_t */
    FLEET_T_TIME,    /* uint64_t, milliseconds, at least min, written with a unit */
    FLEET_T_WORD,    /* an enum: its values are the places in `words` */
    FLEET_T_LIST,    /* const char *const *, min to max texts; set_at is the count, a size_t */
    FLEET_T_OWN,     /* whatever `read` makes of it */
    FLEET_T_SECTION, /* of the root: read after the root, in the order of dependence */
};

#define FLEET_NOWHERE SIZE_MAX

struct fleet_key {
    const char *name;
    enum fleet_type type;
    const char *required; /* an example of its value, for the message that it is missing; NULL: it may be */
    size_t at, set_at; /* offsets in the part's struct; FLEET_NOWHERE */
    uint64_t min, max;
    const char *const *words; /* NULL-terminated */
    /* of a text, or of each text of a list; NULL takes any */
    int (*check)(struct fleet_reader *r, const struct yaml_node *n, struct str text);
    int (*read)(struct fleet_reader *r, const struct yaml_node *n, void *part);
};

struct fleet_schema {
    const struct fleet_key *keys;
    size_t n;
};

/* A map of named parts: hosts, runtimes, models, services, endpoints. */
struct fleet_section {
    const char *key, *what;     /* "services", "service" */
    const struct fleet_schema *schema;
    size_t size, pos_at;        /* of the part's struct, whose first member is its name */
    size_t items_at, count_at;  /* in struct fleet */
    int (*check_name)(struct fleet_reader *r, const struct yaml_node *n, struct str name);
    void (*defaults)(void *part);                                                    /* NULL: all zero */
    int (*rules)(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index); /* NULL: none */
};

/* fleet_schema.c */
extern const struct fleet_schema fleet_schema_root, fleet_schema_host, fleet_schema_device, fleet_schema_runtime, fleet_schema_model,
    fleet_schema_service, fleet_schema_kv, fleet_schema_serves, fleet_schema_vllm, fleet_schema_endpoint, fleet_schema_group, fleet_schema_client, fleet_schema_router, fleet_schema_tls, fleet_schema_bodies;
extern const struct fleet_section fleet_sections[]; /* in the order in which they are read */
extern const size_t fleet_n_sections;

/* ---- fleet_read.c: tables to structs, and messages ------------------------------------------------------ */

/* "FILE:LINE:COLUMN: ...", -EINVAL. */
int fleet_refuse_at(const struct fleet_reader *r, struct fleet_pos at, const char *fmt, ...) BASE_PRINTF(3, 4);
/* At the value n. */
int fleet_refuse(const struct fleet_reader *r, const struct yaml_node *n, const char *fmt, ...) BASE_PRINTF(3, 4);
/* Outside text made fit for a message; lives in the fleet's arena. Never NULL. */
const char *fleet_show(const struct fleet_reader *r, struct str text);
/* What the part with that label has for another program's word, as a message says it; NULL: nothing that is known. */
const char *fleet_elsewhere(const char *of, struct str key);
/* "'port' of service 'a'", "item 2 of 'args' of service 'a'". Never NULL. */
const char *fleet_label(const struct fleet_reader *r);
struct fleet_pos fleet_pos_of(const struct yaml_node *n);     /* of a value */
struct fleet_pos fleet_key_pos_of(const struct yaml_node *n); /* of its key */

/* The text of a scalar: not null, not too long, no control bytes. *ret is terminated and lives with the fleet. */
int fleet_text(struct fleet_reader *r, const struct yaml_node *n, const char **ret) BASE_MUST_USE;
/* A whole number without quotes, min to max. */
int fleet_number(struct fleet_reader *r, const struct yaml_node *n, uint64_t min, uint64_t max, uint64_t *ret) BASE_MUST_USE;
int fleet_bytes(struct fleet_reader *r, const struct yaml_node *n, uint64_t min, uint64_t *ret) BASE_MUST_USE;
/* How many items a list has; n must be a list of min to max. */
int fleet_list(struct fleet_reader *r, const struct yaml_node *n, uint64_t min, uint64_t max, size_t *ret) BASE_MUST_USE;
int fleet_map(struct fleet_reader *r, const struct yaml_node *n) BASE_MUST_USE;
/* Reads map n into part. of names the part in messages; at is where a missing key is reported. The reader's own labels are
 * the caller's again afterwards. */
int fleet_read_part(struct fleet_reader *r, const struct fleet_schema *s, const struct yaml_node *n, const char *of, struct fleet_pos at,
                    void *part) BASE_MUST_USE;
int fleet_read_section(struct fleet_reader *r, const struct fleet_section *s) BASE_MUST_USE;
/* The part of that name in an array of n structs that begin with their name, or NULL. */
const void *fleet_find(const void *parts, size_t n, size_t size, struct str name);
/* The refusal of a reference: what ("model") is called text and is not among n parts. */
int fleet_refuse_ref(struct fleet_reader *r, const struct yaml_node *n, const char *what, const char *text, const void *parts, size_t n_parts,
                     size_t size) BASE_MUST_USE;

/* ---- fleet_text.c: what texts may be ---------------------------------------------------------------------- */

int fleet_check_name(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_service_name(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_model_name(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_ssh(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_address(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_device(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_pci(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_engine(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_package(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_file(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_bind(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_read_bind(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_check_url_path(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_header(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_origin(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_word(struct fleet_reader *r, const struct yaml_node *n, struct str text);
/* Of an address with a scheme. */
int fleet_check_port(struct fleet_reader *r, const struct yaml_node *n, struct str url);
bool fleet_is_loopback(struct str ip);
bool fleet_is_ip(struct str text); /* IPv4 or IPv6 without brackets */

/* ---- fleet_value.c: values of their own kind ---------------------------------------------------------------- */

/* The absolute path of text, which is taken from the fleet file's folder when relative. */
int fleet_path(struct fleet_reader *r, const struct yaml_node *n, struct str text, const char **ret) BASE_MUST_USE;
int fleet_read_version(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_devices(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_runtime_source(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_model_source(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_template(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_host_ref(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_runtime_ref(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_model_ref(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_service_refs(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_split(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_kv(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_floor(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_serves(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_vllm(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_prompt_cache(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_prompt_files(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_group_services(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_env(struct fleet_reader *r, const struct yaml_node *n, void *part);
/* The absolute path of text, which is taken from the fleet file's folder when relative. */
/* A name in n that stands for one of n_parts. */
int fleet_read_ref(struct fleet_reader *r, const struct yaml_node *n, const char *what, const void *parts, size_t n_parts, size_t size, const void **ret) BASE_MUST_USE;

/* ---- fleet_router.c: the router's values ----------------------------------------------------------------------- */

int fleet_read_router_host(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_listen(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_admin(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_check_credentials(struct fleet_reader *r, const struct fleet_service *s);
int fleet_read_credentials(struct fleet_reader *r, const struct yaml_node *n, void *part);
/* fleet_key.c */
int fleet_read_service_key(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_rules_key(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s);
int fleet_read_keys_file(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_bodies(struct fleet_reader *r, const struct yaml_node *n, void *part);

/* ---- fleet_listen.c: places that are files ----------------------------------------------------------------------- */

bool fleet_is_socket(struct str text); /* "unix:..." */
/* The absolute path of such a text. */
int fleet_read_socket(struct fleet_reader *r, const struct yaml_node *n, struct str text, const char **ret) BASE_MUST_USE;
int fleet_read_tls(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_certificate(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_key(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_rules_listen(struct fleet_reader *r) BASE_MUST_USE;

/* ---- fleet_client.c: who asks, and what is written about it ------------------------------------------------------ */

int fleet_read_firewall(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_reasoning(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_client_file(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_client_from(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_client_endpoints(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_read_documents(struct fleet_reader *r, const struct yaml_node *n, void *part);
int fleet_check_client_url(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_check_variable(struct fleet_reader *r, const struct yaml_node *n, struct str text);
int fleet_rules_client(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index);

/* ---- fleet_hash.c ------------------------------------------------------------------------------------------------ */

/* Numbers services and runtimes; when everything is read. */
void fleet_hash(struct fleet_reader *r);
/* A model's commit became known. */
void fleet_hash_commit(struct fleet *f, const struct fleet_model *m);

/* ---- rules: fleet_rules.c (one part), fleet_ports.c (the whole fleet) --------------------------------------------- */

int fleet_rules_host(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index);
int fleet_rules_runtime(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index);
int fleet_rules_service(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index);
int fleet_rules_group(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index);
int fleet_rules_router(struct fleet_reader *r) BASE_MUST_USE;
int fleet_rules_ports(struct fleet_reader *r) BASE_MUST_USE;
int fleet_rules_endpoints(struct fleet_reader *r) BASE_MUST_USE;
