/* SPDX-License-Identifier: MIT
 *
 * mkmodel: writes a GGUF model of any shape for tests: with random weights, which an engine loads and answers with (nonsense), or hollow, with a header and a hole in place of
 * the data, which tells an engine every size of a model of any weight in a few KiB of disk.
 *
 * The vocabulary is the bytes and five control tokens, as in assets/tiny; what --vocab and --big-vocab ask beyond that is filler that no text yields. Tensors are listed once, in
 * the order of the file; parts of a split set take runs of that list. Exit codes: 0 written, 1 failed, 2 usage.
 */
#include <base/base.h>
#include <gguf/gguf.h>
#include <os/os.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <unistd.h>

#define LAYERS_MAX 512
#define EXPERTS_MAX 1024
#define DIM_MAX (1u << 20)
#define VOCAB_MAX (1u << 24)
#define CONTEXT_MAX (1u << 30)
#define SPLIT_MAX 512
#define TENSORS_MAX (LAYERS_MAX * 16 + 8)
#define MEMORY_MAX ((size_t)4 << 30)
#define HEADER_MAX ((size_t)1 << 30)
#define CHUNK ((size_t)1 << 20)
#define SIGMA 0.02f /* of random weights: small enough for any depth */
#define N_SPECIAL 5
#define N_BYTES 256

static const char help[] =
    "usage: mkmodel [options] OUT.gguf\n"
    "\n"
    "Writes a model with random weights for tests.\n"
    "\n"
    "  --arch NAME       llama (default), qwen2, qwen3, qwen3moe\n"
    "  --layers N        default 2\n"
    "  --dim N           width, default 128\n"
    "  --heads N         attention heads, default 4\n"
    "  --kv-heads N      default: half the heads\n"
    "  --head-dim N      default: dim / heads\n"
    "  --ff N            width of the feed-forward part (of one expert), default\n"
    "                    2 * dim\n"
    "  --experts N       default 0: dense (qwen3moe: 4)\n"
    "  --experts-used N  default 2\n"
    "  --vocab N         tokens, default and least 261: bytes and control tokens\n"
    "  --big-vocab N     N more tokens and as many merges, for large headers\n"
    "  --context N       trained context, default 1024\n"
    "  --type T          of the matrices: f32, f16 (default), bf16, q4_0, q4_1,\n"
    "                    q5_0, q5_1, q8_0, q2_K, q3_K, q4_K, q5_K, q6_K, iq4_nl;\n"
    "                    with --hollow any type of ggml\n"
    "  --untied          an output matrix of its own, not the embedding again\n"
    "  --split N         N files OUT-00001-of-0000N.gguf ...\n"
    "  --hollow          a header and a hole: right sizes, no data\n"
    "  --seed N          default 1\n"
    "  --name TEXT       general.name, default OUT's\n"
    "  -h, --help        this text\n";

/* What sets an architecture apart from llama. */
struct arch {
    const char *name;
    bool qkv_bias, qk_norm, always_experts, expert_ff_key;
};
static const struct arch archs[] = {
    {.name = "llama"},
    {.name = "qwen2", .qkv_bias = true},
    {.name = "qwen3", .qk_norm = true},
    {.name = "qwen3moe", .qk_norm = true, .always_experts = true, .expert_ff_key = true},
};

struct shape {
    const struct arch *arch;
    const struct gguf_type *type;
    uint64_t layers, dim, heads, kv_heads, head_dim, ff, experts, experts_used, vocab, big_vocab, context, split, seed;
    bool untied, hollow;
    const char *name, *out;
};

enum fill { FILL_ONE, FILL_SMALL, FILL_MATRIX };

struct tensor {
    char name[GGUF_NAME_MAX + 1];
    uint32_t type;
    uint64_t dims[3];
    size_t n_dims;
    uint64_t bytes;
    enum fill fill;
};

struct model {
    struct shape s;
    struct tensor *tensors;
    size_t n;
    uint64_t parameters, bytes;
    uint64_t random;           /* state of the generator */
    uint16_t *normals;         /* 65536 random numbers as f16, drawn from at random */
};

static _Noreturn void usage(const char *fmt, ...) BASE_PRINTF(1, 2);
static _Noreturn void usage(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("mkmodel: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputs("; 'mkmodel --help' shows how it is used\n", stderr);
    va_end(ap);
    exit(2);
}

/* ---- options -------------------------------------------------------------------------------------------------- */

enum { OPT_ARCH = 256, OPT_TYPE, OPT_NAME, OPT_UNTIED, OPT_HOLLOW, OPT_NUMBER };

struct number {
    const char *name;
    size_t at; /* in struct shape */
    uint64_t least, most;
};
static const struct number numbers[] = {
    {"layers", offsetof(struct shape, layers), 1, LAYERS_MAX},
    {"dim", offsetof(struct shape, dim), 2, DIM_MAX},
    {"heads", offsetof(struct shape, heads), 1, 4096},
    {"kv-heads", offsetof(struct shape, kv_heads), 1, 4096},
    {"head-dim", offsetof(struct shape, head_dim), 2, DIM_MAX},
    {"ff", offsetof(struct shape, ff), 1, DIM_MAX},
    {"experts", offsetof(struct shape, experts), 0, EXPERTS_MAX},
    {"experts-used", offsetof(struct shape, experts_used), 1, EXPERTS_MAX},
    {"vocab", offsetof(struct shape, vocab), N_BYTES + N_SPECIAL, VOCAB_MAX},
    {"big-vocab", offsetof(struct shape, big_vocab), 0, VOCAB_MAX},
    {"context", offsetof(struct shape, context), 1, CONTEXT_MAX},
    {"split", offsetof(struct shape, split), 1, SPLIT_MAX},
    {"seed", offsetof(struct shape, seed), 0, UINT64_MAX},
};

static void set_number(struct shape *s, const struct number *n, const char *text)
{
    uint64_t v;
    if (str_to_u64(str_of(text), &v) < 0 || v < n->least || v > n->most)
        usage("--%s '%s' is no number from %llu to %llu", n->name, text, (unsigned long long)n->least, (unsigned long long)n->most);
    memcpy((char *)s + n->at, &v, sizeof v);
}

static const struct arch *find_arch(const char *name)
{
    for (size_t i = 0; i < BASE_COUNT(archs); i++)
        if (strcmp(name, archs[i].name) == 0)
            return &archs[i];
    usage("there is no architecture '%s'", name);
}

static void set_option(struct shape *s, int opt, const char *arg)
{
    switch (opt) {
    case OPT_ARCH:
        s->arch = find_arch(arg);
        break;
    case OPT_TYPE:
        s->type = gguf_type_find(str_of(arg));
        if (!s->type)
            usage("there is no type '%s'", arg);
        break;
    case OPT_NAME:
        s->name = arg;
        break;
    case OPT_UNTIED:
        s->untied = true;
        break;
    case OPT_HOLLOW:
        s->hollow = true;
        break;
    case 'h':
        fputs(help, stdout);
        exit(0);
    default:
        set_number(s, &numbers[opt - OPT_NUMBER], arg);
        break;
    }
}

static void parse(struct shape *s, int argc, char **argv)
{
    static const struct option words[] = {{"arch", required_argument, NULL, OPT_ARCH},   {"type", required_argument, NULL, OPT_TYPE},
                                          {"name", required_argument, NULL, OPT_NAME},   {"untied", no_argument, NULL, OPT_UNTIED},
                                          {"hollow", no_argument, NULL, OPT_HOLLOW},     {"help", no_argument, NULL, 'h'}};
    struct option all[BASE_COUNT(words) + BASE_COUNT(numbers) + 1] = {0};
    memcpy(all, words, sizeof words);
    for (size_t i = 0; i < BASE_COUNT(numbers); i++)
        all[BASE_COUNT(words) + i] = (struct option){numbers[i].name, required_argument, NULL, OPT_NUMBER + (int)i};
    int opt;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":h", all, NULL)) != -1) {
        if (opt == '?' || opt == ':')
            usage(opt == ':' ? "option '%s' lacks its value" : "there is no option '%s'", argv[optind - 1]);
        set_option(s, opt, optarg);
    }
    if (optind != argc - 1)
        usage(optind == argc ? "the file to write is missing" : "there is more than one file to write");
    s->out = argv[optind];
}

/* ---- random numbers ------------------------------------------------------------------------------------------------ */

/* splitmix64 */
static uint64_t next_random(struct model *m)
{
    uint64_t z = m->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static uint32_t float_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* IEEE half of a finite float below 65504, rounded to nearest. */
static uint16_t half(float v)
{
    uint16_t sign = v < 0 ? 0x8000 : 0;
    float a = fabsf(v);
    if (a < 6.103515625e-05f) /* 2^-14: subnormal, in units of 2^-24 */
        return (uint16_t)(sign | (uint16_t)lrintf(a * 16777216.0f));
    uint32_t bits = float_bits(a) + 0x1000; /* half of the 13 bits that go */
    return (uint16_t)(sign | (uint16_t)((bits >> 13) - (112u << 10)));
}

static float from_half(uint16_t h)
{
    int exponent = h >> 10 & 31;
    float v = exponent ? ldexpf((float)(1024 + (h & 1023)), exponent - 25) : ldexpf((float)(h & 1023), -24);
    return h & 0x8000 ? -v : v;
}

/* Normal with deviation SIGMA: the sum of twelve uniform numbers. */
static void make_normals(struct model *m)
{
    for (size_t i = 0; i < 65536; i++) {
        float sum = -6;
        for (unsigned k = 0; k < 12; k++)
            sum += (float)(next_random(m) >> 40) / 16777216.0f;
        m->normals[i] = half(sum * SIGMA);
    }
}

/* ---- blocks of quantized types --------------------------------------------------------------------------------------- */

/* In a block every byte may be random but the f16 scales. `spread` is what a weight is, in units of the scale, as a deviation; a second scale takes away the mean. */
struct quant {
    const char *type;
    unsigned scale_at, min_at; /* 0xff: none */
    float spread, mean;
};
static const struct quant quants[] = {
    {"q4_0", 0, 0xff, 4.6f, 0},   {"q4_1", 0, 2, 4.6f, -7.5f},   {"q5_0", 0, 0xff, 9.2f, 0},  {"q5_1", 0, 2, 9.2f, -15.5f}, {"q8_0", 0, 0xff, 74, 0},
    {"q2_K", 80, 82, 11, 1.5f},   {"q3_K", 108, 0xff, 42, 0},    {"q4_K", 0, 2, 190, 7.5f},   {"q5_K", 0, 2, 390, 15.5f},   {"q6_K", 208, 0xff, 1370, 0},
    {"iq4_nl", 0, 0xff, 70, 0},
};

static const struct quant *find_quant(const struct gguf_type *t)
{
    for (size_t i = 0; i < BASE_COUNT(quants); i++)
        if (strcmp(quants[i].type, t->name) == 0)
            return &quants[i];
    return NULL;
}

static bool is_float(const struct gguf_type *t)
{
    return strcmp(t->name, "f32") == 0 || strcmp(t->name, "f16") == 0 || strcmp(t->name, "bf16") == 0;
}

static void put_half(uint8_t *at, uint16_t v)
{
    at[0] = (uint8_t)v;
    at[1] = (uint8_t)(v >> 8);
}

static void fill_blocks(struct model *m, const struct quant *q, const struct gguf_type *t, uint8_t *to, size_t n_blocks)
{
    uint16_t scale = half(SIGMA / q->spread), min = half(SIGMA / q->spread * fabsf(q->mean));
    if (q->mean < 0)
        min |= 0x8000; /* added, where the others subtract it */
    for (size_t b = 0; b < n_blocks; b++, to += t->bytes) {
        for (size_t i = 0; i < t->bytes; i += 8) {
            uint64_t r = next_random(m);
            memcpy(to + i, &r, t->bytes - i < 8 ? t->bytes - i : 8);
        }
        put_half(to + q->scale_at, scale);
        if (q->min_at != 0xff)
            put_half(to + q->min_at, min);
    }
}

static void fill_floats(struct model *m, const struct gguf_type *t, bool ones, uint8_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = ones ? half(1.0f) : m->normals[next_random(m) & 0xffff];
        if (t->bytes == 2 && strcmp(t->name, "f16") == 0) {
            put_half(to + i * 2, h);
        } else {
            uint32_t bits = float_bits(from_half(h));
            if (t->bytes == 2)
                put_half(to + i * 2, (uint16_t)(bits >> 16));
            else
                for (unsigned k = 0; k < 4; k++)
                    to[i * 4 + k] = (uint8_t)(bits >> 8 * k);
        }
    }
}

/* ---- the list of tensors ------------------------------------------------------------------------------------------------ */

/* One tensor; vectors are f32 whatever the type, as engines want them. */
static void add(struct model *m, enum fill fill, uint64_t d0, uint64_t d1, uint64_t d2, const char *fmt, ...) BASE_PRINTF(6, 7);
static void add(struct model *m, enum fill fill, uint64_t d0, uint64_t d1, uint64_t d2, const char *fmt, ...)
{
    struct tensor *t = &m->tensors[m->n++];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    const struct gguf_type *type = fill == FILL_MATRIX ? m->s.type : gguf_type_find(STR("f32"));
    t->fill = fill;
    t->type = type->id;
    t->dims[0] = d0;
    t->dims[1] = d1;
    t->dims[2] = d2;
    t->n_dims = d2 ? 3 : d1 ? 2 : 1;
    uint64_t elements = d0;
    bool fits = (!d1 || size_mul(elements, d1, &elements)) && (!d2 || size_mul(elements, d2, &elements)) && size_add(m->parameters, elements, &m->parameters);
    int r = gguf_tensor_bytes(type, t->dims, t->n_dims, &t->bytes);
    if (r == -EINVAL)
        usage("tensor '%s' has rows of %llu, no multiple of %u, the block of %s", t->name, (unsigned long long)d0, (unsigned)type->block, type->name);
    if (!fits || r < 0 || !size_add(m->bytes, t->bytes, &m->bytes) || m->bytes > (uint64_t)1 << 50)
        usage("a model of that shape has more than 1 PiB");
}

static void add_layer(struct model *m, unsigned i)
{
    const struct shape *s = &m->s;
    uint64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    add(m, FILL_ONE, s->dim, 0, 0, "blk.%u.attn_norm.weight", i);
    add(m, FILL_MATRIX, s->dim, q, 0, "blk.%u.attn_q.weight", i);
    add(m, FILL_MATRIX, s->dim, kv, 0, "blk.%u.attn_k.weight", i);
    add(m, FILL_MATRIX, s->dim, kv, 0, "blk.%u.attn_v.weight", i);
    if (s->arch->qkv_bias) {
        add(m, FILL_SMALL, q, 0, 0, "blk.%u.attn_q.bias", i);
        add(m, FILL_SMALL, kv, 0, 0, "blk.%u.attn_k.bias", i);
        add(m, FILL_SMALL, kv, 0, 0, "blk.%u.attn_v.bias", i);
    }
    if (s->arch->qk_norm) {
        add(m, FILL_ONE, s->head_dim, 0, 0, "blk.%u.attn_q_norm.weight", i);
        add(m, FILL_ONE, s->head_dim, 0, 0, "blk.%u.attn_k_norm.weight", i);
    }
    add(m, FILL_MATRIX, q, s->dim, 0, "blk.%u.attn_output.weight", i);
    add(m, FILL_ONE, s->dim, 0, 0, "blk.%u.ffn_norm.weight", i);
    const char *of = s->experts ? "_exps" : "";
    if (s->experts)
        add(m, FILL_SMALL, s->dim, s->experts, 0, "blk.%u.ffn_gate_inp.weight", i);
    add(m, FILL_MATRIX, s->dim, s->ff, s->experts, "blk.%u.ffn_gate%s.weight", i, of);
    add(m, FILL_MATRIX, s->dim, s->ff, s->experts, "blk.%u.ffn_up%s.weight", i, of);
    add(m, FILL_MATRIX, s->ff, s->dim, s->experts, "blk.%u.ffn_down%s.weight", i, of);
}

static void list_tensors(struct model *m)
{
    const struct shape *s = &m->s;
    add(m, FILL_MATRIX, s->dim, s->vocab + s->big_vocab, 0, "token_embd.weight");
    add(m, FILL_ONE, s->dim, 0, 0, "output_norm.weight");
    if (s->untied)
        add(m, FILL_MATRIX, s->dim, s->vocab + s->big_vocab, 0, "output.weight");
    for (unsigned i = 0; i < s->layers; i++)
        add_layer(m, i);
}

/* ---- metadata -------------------------------------------------------------------------------------------------------------- */

/* Names of a file type in general.file_type, which only tells people what it is. */
static uint32_t file_type(const struct gguf_type *t)
{
    static const struct {
        const char *name;
        uint32_t id;
    } known[] = {{"f32", 0}, {"f16", 1}, {"q4_0", 2}, {"q4_1", 3}, {"q8_0", 7}, {"q5_0", 8}, {"q5_1", 9}, {"q2_K", 10}, {"q3_K", 12}, {"q4_K", 15}, {"q5_K", 17}, {"q6_K", 18}, {"iq4_nl", 25}, {"bf16", 32}};
    for (size_t i = 0; i < BASE_COUNT(known); i++)
        if (strcmp(known[i].name, t->name) == 0)
            return known[i].id;
    return 1024; /* guessed, as engines mark it */
}

/* GPT-2's way to write a byte as a printable character: those that are printable as they are, the others from 256 on. */
static unsigned byte_char(unsigned byte)
{
    unsigned n = 256;
    for (unsigned b = 0; b < N_BYTES; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
        if (b == byte)
            return printable ? b : n;
        n += !printable;
    }
    return n;
}

static struct str token_text(struct arena *a, uint64_t i)
{
    static const char *const special[N_SPECIAL] = {"<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"};
    if (i >= N_BYTES && i < N_BYTES + N_SPECIAL)
        return str_of(special[i - N_BYTES]);
    if (i > N_BYTES)
        return str_of(arena_printf(a, "<filler-%llu>", (unsigned long long)i));
    unsigned c = byte_char((unsigned)i);
    return str_of(c < 128 ? arena_printf(a, "%c", (int)c) : arena_printf(a, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 63))));
}

static int put_vocabulary(struct gguf_writer *w, const struct shape *s, struct err *err)
{
    static const char template[] = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
    size_t n = s->vocab + s->big_vocab;
    struct arena *a = arena_new(MEMORY_MAX);
    struct str *tokens = a ? arena_alloc(a, n, sizeof *tokens) : NULL, *merges = a ? arena_alloc(a, s->big_vocab + 1, sizeof *merges) : NULL;
    int32_t *kinds = a ? arena_alloc(a, n, sizeof *kinds) : NULL;
    bool ok = tokens && merges && kinds;
    for (size_t i = 0; ok && i < n; i++) {
        tokens[i] = token_text(a, i);
        kinds[i] = i >= N_BYTES && i < N_BYTES + N_SPECIAL ? 3 : 1; /* control, normal */
        ok = tokens[i].ptr != NULL;
    }
    for (size_t i = 0; ok && i < s->big_vocab; i++) {
        /* of two pieces that no text ever has, so that they change no tokens */
        merges[i] = str_of(arena_printf(a, "<left%zu <right%zu", i, i));
        ok = merges[i].ptr != NULL;
    }
    if (ok) {
        gguf_put_str(w, "tokenizer.ggml.model", STR("gpt2"));
        gguf_put_str(w, "tokenizer.ggml.pre", STR("default"));
        gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, n);
        gguf_put_i32s(w, "tokenizer.ggml.token_type", kinds, n);
        gguf_put_strs(w, "tokenizer.ggml.merges", merges, s->big_vocab);
        gguf_put_u32(w, "tokenizer.ggml.bos_token_id", N_BYTES);
        gguf_put_u32(w, "tokenizer.ggml.eos_token_id", N_BYTES);
        gguf_put_u32(w, "tokenizer.ggml.eot_token_id", N_BYTES + N_SPECIAL - 1);
        gguf_put_bool(w, "tokenizer.ggml.add_bos_token", true);
        gguf_put_str(w, "tokenizer.chat_template", STR(template));
    }
    arena_free(a);
    return ok ? 0 : err_nomem(err);
}

static void put_arch(struct gguf_writer *w, const struct shape *s, const char *rest, uint64_t v)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", s->arch->name, rest);
    gguf_put_u32(w, key, (uint32_t)v);
}

static int put_metadata(struct gguf_writer *w, const struct shape *s, struct err *err)
{
    char key[128];
    gguf_put_str(w, "general.architecture", str_of(s->arch->name));
    gguf_put_str(w, "general.name", str_of(s->name));
    gguf_put_u32(w, "general.file_type", file_type(s->type));
    put_arch(w, s, "block_count", s->layers);
    put_arch(w, s, "context_length", s->context);
    put_arch(w, s, "embedding_length", s->dim);
    put_arch(w, s, "feed_forward_length", s->ff);
    put_arch(w, s, "vocab_size", s->vocab + s->big_vocab);
    put_arch(w, s, "attention.head_count", s->heads);
    put_arch(w, s, "attention.head_count_kv", s->kv_heads);
    put_arch(w, s, "attention.key_length", s->head_dim);
    put_arch(w, s, "attention.value_length", s->head_dim);
    put_arch(w, s, "rope.dimension_count", s->head_dim);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch->name);
    gguf_put_f32(w, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch->name);
    gguf_put_f32(w, key, 10000.0f);
    if (s->experts) {
        put_arch(w, s, "expert_count", s->experts);
        put_arch(w, s, "expert_used_count", s->experts_used);
        if (s->arch->expert_ff_key)
            put_arch(w, s, "expert_feed_forward_length", s->ff);
    }
    return put_vocabulary(w, s, err);
}

/* ---- writing ----------------------------------------------------------------------------------------------------------------- */

static int write_zeros(int fd, uint64_t n, struct err *err)
{
    static const char zeros[GGUF_ALIGN];
    return n ? os_write_all(fd, zeros, n, err) : 0;
}

static int write_tensor(struct model *m, int fd, const struct tensor *t, uint8_t *chunk, struct err *err)
{
    const struct gguf_type *type = gguf_type_get(t->type);
    const struct quant *q = find_quant(type);
    size_t per_chunk = CHUNK / type->bytes;
    for (uint64_t left = t->bytes / type->bytes; left;) {
        size_t n = left < per_chunk ? (size_t)left : per_chunk;
        if (q)
            fill_blocks(m, q, type, chunk, n);
        else
            fill_floats(m, type, t->fill == FILL_ONE, chunk, n);
        int r = os_write_all(fd, chunk, n * type->bytes, err);
        if (r < 0)
            return r;
        left -= n;
    }
    return write_zeros(fd, (GGUF_ALIGN - t->bytes % GGUF_ALIGN) % GGUF_ALIGN, err);
}

static int write_data(struct model *m, int fd, size_t first, size_t end, uint64_t header_bytes, uint64_t data_bytes, struct err *err)
{
    if (m->s.hollow)
        return ftruncate(fd, (off_t)(header_bytes + data_bytes)) < 0 ? err_sys(err, -errno, "cannot set the file's length") : 0;
    uint8_t *chunk = malloc(CHUNK);
    if (!chunk)
        return err_nomem(err);
    int r = 0;
    for (size_t i = first; r == 0 && i < end; i++)
        r = write_tensor(m, fd, &m->tensors[i], chunk, err);
    free(chunk);
    return r;
}

static int make_header(const struct model *m, unsigned part, size_t first, size_t end, struct buf *header, uint64_t *data_bytes, struct err *err)
{
    struct gguf_writer *w = gguf_writer_new();
    if (!w)
        return err_nomem(err);
    int r = part == 0 ? put_metadata(w, &m->s, err) : 0;
    if (m->s.split) {
        gguf_put_u16(w, "split.no", (uint16_t)part);
        gguf_put_u16(w, "split.count", (uint16_t)m->s.split);
        gguf_put_i32(w, "split.tensors.count", (int32_t)m->n);
    }
    for (size_t i = first; i < end; i++)
        gguf_put_tensor(w, m->tensors[i].name, m->tensors[i].type, m->tensors[i].dims, m->tensors[i].n_dims);
    if (r == 0)
        r = gguf_writer_header(w, header, data_bytes, err);
    gguf_writer_free(w);
    return r;
}

static int write_part(struct model *m, const char *path, unsigned part, size_t first, size_t end, struct err *err)
{
    base_autobuf struct buf header = BUF_INIT(HEADER_MAX);
    uint64_t data_bytes = 0;
    int r = make_header(m, part, first, end, &header, &data_bytes, err);
    if (r < 0)
        return r;
    os_autoclose int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(err, -errno, "cannot write '%s'", path);
    r = os_write_all(fd, header.ptr, header.len, err);
    if (r == 0)
        r = write_data(m, fd, first, end, header.len, data_bytes, err);
    if (r < 0) {
        (void)err_prefix(err, "'%s'", path);
        (void)unlink(path);
    }
    return r;
}

/* Runs of tensors of about the same bytes, none empty. */
static int write_all(struct model *m, struct err *err)
{
    const struct shape *s = &m->s;
    if (!s->split)
        return write_part(m, s->out, 0, 0, m->n, err);
    size_t stem = strlen(s->out) - strlen(".gguf"), first = 0;
    uint64_t done = 0;
    for (unsigned part = 0; part < s->split; part++) {
        base_autobuf struct buf path = BUF_INIT(65536);
        size_t end = first, must_leave = (size_t)s->split - part - 1;
        do
            done += m->tensors[end++].bytes;
        while (end < m->n - must_leave && (must_leave == 0 || done < m->bytes / s->split * (part + 1)));
        buf_addf(&path, "%.*s-%05u-of-%05u.gguf", (int)stem, s->out, part + 1, (unsigned)s->split);
        int r = buf_status(&path) < 0 ? err_nomem(err) : write_part(m, path.ptr, part, first, end, err);
        if (r < 0)
            return r;
        first = end;
    }
    return 0;
}

/* ---- the shape as a whole -------------------------------------------------------------------------------------------------------- */

static void complete(struct shape *s)
{
    if (!s->kv_heads)
        s->kv_heads = s->heads > 1 ? s->heads / 2 : 1;
    if (!s->head_dim)
        s->head_dim = s->dim / s->heads;
    if (!s->ff)
        s->ff = 2 * s->dim;
    if (s->arch->always_experts && !s->experts)
        s->experts = 4;
    if (!str_ends(str_of(s->out), STR(".gguf")))
        usage("the file's name '%s' does not end in .gguf", s->out);
    if (s->head_dim < 2 || s->head_dim % 2)
        usage("a head of %llu is not even: --dim / --heads, or --head-dim", (unsigned long long)s->head_dim);
    if (s->heads % s->kv_heads)
        usage("--heads %llu is no multiple of --kv-heads %llu", (unsigned long long)s->heads, (unsigned long long)s->kv_heads);
    if (s->experts && s->experts_used > s->experts)
        usage("--experts-used %llu is more than --experts %llu", (unsigned long long)s->experts_used, (unsigned long long)s->experts);
    if (s->experts && (strcmp(s->arch->name, "qwen2") == 0 || strcmp(s->arch->name, "qwen3") == 0))
        usage("%s has no experts", s->arch->name);
    if (!s->hollow && !is_float(s->type) && !find_quant(s->type))
        usage("random weights cannot be written as %s: add --hollow", s->type->name);
    if (!s->name) {
        const char *slash = strrchr(s->out, '/');
        s->name = slash ? slash + 1 : s->out;
    }
}

int main(int argc, char **argv)
{
    struct model m = {.s = {.arch = &archs[0], .layers = 2, .dim = 128, .heads = 4, .experts_used = 2, .vocab = N_BYTES + N_SPECIAL, .context = 1024, .seed = 1}};
    struct err err = {0};
    char size[UNITS_TEXT];
    m.s.type = gguf_type_find(STR("f16"));
    parse(&m.s, argc, argv);
    complete(&m.s);
    m.tensors = calloc(TENSORS_MAX, sizeof *m.tensors);
    m.normals = calloc(65536, sizeof *m.normals);
    int r = m.tensors && m.normals ? 0 : err_nomem(&err);
    if (r == 0) {
        m.random = m.s.seed;
        make_normals(&m);
        list_tensors(&m);
        if (m.s.split > m.n)
            usage("--split %llu is more than the %zu tensors of the model", (unsigned long long)m.s.split, m.n);
        r = write_all(&m, &err);
    }
    free(m.tensors);
    free(m.normals);
    if (r < 0) {
        fprintf(stderr, "mkmodel: %s\n", err.text);
        return 1;
    }
    printf("%s: %s, %llu parameters, %s of weights%s\n", m.s.out, m.s.arch->name, (unsigned long long)m.parameters, units_show_bytes(m.bytes, size), m.s.hollow ? ", hollow" : "");
    return 0;
}
