/* SPDX-License-Identifier: MIT
 *
 * Writes a model that plays a part, so that what an engine does for tools, thinking, pictures and sound can be tested on the real engine: its template, grammar, parsers, encoders and sampling run as for any model, and only the
 * weights are made up. One token's piece is a whole answer; which one comes follows from what the prompt holds, and from what the picture shows.
 *
 *   mkactor FOLDER        writes actor.gguf, actor-mmproj.gguf and actor.jinja, the template that actor.gguf has, into FOLDER
 *
 * The language model has one layer. Embeddings are one axis for each token, so that the output matrix is a table: after this token come those. Attention looks at all positions alike (queries and keys are zero) and copies what the
 * average holds of a few axes, the senses, into others, from where the output matrix leans to one of the answers that may come next: far less than the table says, so that it decides between equals only. The senses are the token
 * <|tools|>, which the template writes where tools are given, and the axes that the projector writes to: red, green, blue, sound. The feed-forward part is zero.
 *
 * The picture's encoder (llava's) averages each patch, and its projector puts the three colours on their axes. The sound's (whisper's) puts the same on its axis whatever it hears.
 */
#include <base/base.h>
#include <fcntl.h>
#include <gguf/gguf.h>
#include <os/os.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define N_BYTES 256u
#define DIM 320u        /* of the language model: its tokens, then the senses, then what the average says of them */
#define HEAD 32u
#define CONTEXT 8192u
#define TABLE 400.0f    /* logits before the last norm: of what the table says comes next */
#define LEAN 20.0f      /* of what the average holds at most once over; less than TABLE even when it is all of the prompt (sqrt(DIM) times) */
#define FIRST 0.1f     /* by which what comes without any sense is ahead: less than LEAN times what one token of a thousand is */
#define WIDTH 8u        /* of the encoders */
#define SIDE 64u        /* of the picture */
#define PATCH 16u
#define MEL 128u        /* whisper's */
#define FRAMES 1500u
#define STACK 50u       /* frames that become one token */
#define ENTRIES 1024
#define FILE_MOST (8u << 20)

enum special { END_OF_TEXT, SYSTEM, USER, ASSISTANT, END, TOOLS, N_SPECIAL };
static const char *const specials[N_SPECIAL] = {"<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tools|>"};

enum piece { CALL, THINK, PLAIN, RED, GREEN, BLUE, TONE, N_PIECES };
static const char *const pieces[N_PIECES] = {
    "<tool_call>\n{\"name\": \"set_light\", \"arguments\": {\"colour\": \"red\"}}\n</tool_call>", "<think>\nI add and carry.\n</think>\n\n", "One, two, three.", "Red.", "Green.", "Blue.", "A tone.",
};

enum sense { SENSE_TOOLS, SENSE_RED, SENSE_GREEN, SENSE_BLUE, SENSE_SOUND, N_SENSES };
static const enum piece answers[N_SENSES] = {CALL, RED, GREEN, BLUE, TONE};

#define TOKEN(s) (N_BYTES + (s))
#define PIECE(p) (N_BYTES + N_SPECIAL + (p))
#define VOCAB (N_BYTES + N_SPECIAL + N_PIECES)
#define FELT(s) (VOCAB + (s))              /* of one position */
#define KNOWN(s) (VOCAB + N_SENSES + (s))  /* of the average */

static const char template[] =
    "{%- if reasoning_effort is defined and reasoning_effort not in [\"low\", \"high\"] %}{{ raise_exception(\"no such effort: \" + reasoning_effort) }}{% endif -%}\n"
    "{%- if tools %}<|system|><|tools|>{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|end|>{% endif -%}\n"
    "{%- for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content if m.content is string else \"\" }}"
    "{%- for c in m.tool_calls or [] %}\n<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|end|>{% endfor -%}\n"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}\n";

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void die(const char *what)
{
    fprintf(stderr, "mkactor: %s\n", what);
    exit(1);
}

/* A model's file while it is put together: tensors are f32, all `fill` but for the entries that were set. */
struct file {
    struct gguf_writer *w;
    struct buf data;
};

static struct file begin(const char *arch)
{
    struct file f = {.w = gguf_writer_new(), .data = BUF_INIT(FILE_MOST)};
    if (!f.w)
        die("out of memory");
    gguf_put_str(f.w, "general.architecture", str_of(arch));
    gguf_put_str(f.w, "general.name", STR("actor"));
    gguf_put_u32(f.w, "general.file_type", 0);
    return f;
}

struct entry {
    uint64_t column, row;
    float value;
};

/* Columns are inputs and rows outputs, as engines have them; d2, d3: 0 where there are fewer dimensions. */
static void add_shaped(struct file *f, const char *name, const uint64_t dims[4], float fill, const struct entry *e, size_t n)
{
    static float values[DIM * VOCAB]; /* the largest */
    size_t n_dims = 0, count = 1;
    while (n_dims < 4 && dims[n_dims])
        count *= (size_t)dims[n_dims++];
    if (count > BASE_COUNT(values))
        die("a tensor is too large");
    for (size_t i = 0; i < count; i++)
        values[i] = fill;
    for (size_t i = 0; i < n; i++)
        values[e[i].row * dims[0] + e[i].column] = e[i].value;
    gguf_put_tensor(f->w, name, gguf_type_find(STR("f32"))->id, dims, n_dims);
    buf_add(&f->data, (const char *)values, count * sizeof *values);
    while (buf_status(&f->data) == 0 && f->data.len % GGUF_ALIGN)
        buf_add_char(&f->data, '\0');
}

static void add(struct file *f, const char *name, uint64_t columns, uint64_t rows, float fill, const struct entry *e, size_t n)
{
    const uint64_t dims[4] = {columns, rows};
    add_shaped(f, name, dims, fill, e, n);
}

static void finish(struct file *f, const char *folder, const char *name)
{
    base_autobuf struct buf header = BUF_INIT(FILE_MOST), path = BUF_INIT(4096);
    uint64_t bytes = 0;
    struct err err;
    buf_addf(&path, "%s/%s", folder, name);
    if (gguf_writer_header(f->w, &header, &bytes, &err) < 0 || buf_status(&f->data) < 0 || buf_status(&path) < 0 || bytes != f->data.len)
        die("the file cannot be put together");
    int fd = open(path.ptr, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || os_write_all(fd, header.ptr, header.len, &err) < 0 || os_write_all(fd, f->data.ptr, f->data.len, &err) < 0 || close(fd) < 0)
        die("the file cannot be written");
    gguf_writer_free(f->w);
    buf_release(&f->data);
}

/* ---- the language model ------------------------------------------------------------------------------------------- */

/* GPT-2's way to write bytes as printable characters. */
static void add_byte(struct buf *out, unsigned byte)
{
    unsigned n = N_BYTES, c = byte;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
        if (b == byte && !printable)
            c = n;
        n += !printable;
    }
    if (c >= 128) {
        buf_add_char(out, (char)(0xc0 | c >> 6));
        c = 0x80 | (c & 63);
    }
    buf_add_char(out, (char)c);
}

static void put_vocabulary(struct gguf_writer *w)
{
    struct str tokens[VOCAB];
    int32_t kinds[VOCAB];
    struct buf texts[VOCAB];
    for (unsigned i = 0; i < VOCAB; i++) {
        bool special = i >= TOKEN(0) && i < PIECE(0);
        texts[i] = BUF_INIT(1024);
        if (i < N_BYTES)
            add_byte(&texts[i], i);
        else if (special)
            buf_add_c(&texts[i], specials[i - TOKEN(0)]);
        else
            for (const char *p = pieces[i - PIECE(0)]; *p; p++)
                add_byte(&texts[i], (unsigned char)*p);
        tokens[i] = buf_str(&texts[i]);
        kinds[i] = special ? 3 : 1; /* control, normal */
    }
    gguf_put_str(w, "tokenizer.ggml.model", STR("gpt2"));
    gguf_put_str(w, "tokenizer.ggml.pre", STR("default"));
    gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, VOCAB);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", kinds, VOCAB);
    gguf_put_strs(w, "tokenizer.ggml.merges", tokens, 0);
    gguf_put_u32(w, "tokenizer.ggml.bos_token_id", TOKEN(END_OF_TEXT));
    gguf_put_u32(w, "tokenizer.ggml.eos_token_id", TOKEN(END_OF_TEXT));
    gguf_put_u32(w, "tokenizer.ggml.eot_token_id", TOKEN(END));
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", true);
    gguf_put_str(w, "tokenizer.chat_template", STR(template));
    for (unsigned i = 0; i < VOCAB; i++)
        buf_release(&texts[i]);
}

static void put_shape(struct gguf_writer *w)
{
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        {"llama.block_count", 1},          {"llama.context_length", CONTEXT},    {"llama.embedding_length", DIM},       {"llama.feed_forward_length", HEAD},   {"llama.vocab_size", VOCAB},
        {"llama.attention.head_count", 1}, {"llama.attention.head_count_kv", 1}, {"llama.attention.key_length", HEAD}, {"llama.attention.value_length", HEAD}, {"llama.rope.dimension_count", HEAD},
    };
    for (size_t i = 0; i < BASE_COUNT(numbers); i++)
        gguf_put_u32(w, numbers[i].key, numbers[i].value);
    gguf_put_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_put_f32(w, "llama.rope.freq_base", 10000.0f);
}

/* What comes after each token, and what the average leans to. */
static size_t table(struct entry *e)
{
    size_t n = 0;
    for (unsigned b = 0; b < N_BYTES; b++)
        e[n++] = (struct entry){b, TOKEN(END), TABLE};
    for (unsigned p = 0; p < N_PIECES; p++)
        e[n++] = (struct entry){PIECE(p), p == THINK ? PIECE(PLAIN) : TOKEN(END), TABLE};
    e[n++] = (struct entry){TOKEN(ASSISTANT), PIECE(THINK), TABLE + FIRST};
    for (unsigned s = 0; s < N_SENSES; s++) {
        e[n++] = (struct entry){TOKEN(ASSISTANT), PIECE(answers[s]), TABLE};
        e[n++] = (struct entry){KNOWN(s), PIECE(answers[s]), LEAN};
    }
    return n;
}

static void write_model(const char *folder)
{
    struct file f = begin("llama");
    struct entry e[ENTRIES];
    put_shape(f.w);
    put_vocabulary(f.w);
    for (unsigned i = 0; i < VOCAB; i++)
        e[i] = (struct entry){i, i, 1};
    add(&f, "token_embd.weight", DIM, VOCAB, 0, e, VOCAB);
    add(&f, "output_norm.weight", DIM, 0, 1, NULL, 0);
    add(&f, "output.weight", DIM, VOCAB, 0, e, table(e));
    add(&f, "blk.0.attn_norm.weight", DIM, 0, 1, NULL, 0);
    add(&f, "blk.0.attn_q.weight", DIM, HEAD, 0, NULL, 0);
    add(&f, "blk.0.attn_k.weight", DIM, HEAD, 0, NULL, 0);
    for (unsigned s = 0; s < N_SENSES; s++)
        e[s] = (struct entry){s == SENSE_TOOLS ? TOKEN(TOOLS) : FELT(s), s, 1};
    add(&f, "blk.0.attn_v.weight", DIM, HEAD, 0, e, N_SENSES);
    for (unsigned s = 0; s < N_SENSES; s++)
        e[s] = (struct entry){s, KNOWN(s), 1};
    add(&f, "blk.0.attn_output.weight", HEAD, DIM, 0, e, N_SENSES);
    add(&f, "blk.0.ffn_norm.weight", DIM, 0, 1, NULL, 0);
    add(&f, "blk.0.ffn_gate.weight", DIM, HEAD, 0, NULL, 0);
    add(&f, "blk.0.ffn_up.weight", DIM, HEAD, 0, NULL, 0);
    add(&f, "blk.0.ffn_down.weight", HEAD, DIM, 0, NULL, 0);
    finish(&f, folder, "actor.gguf");
}

/* ---- the projector ------------------------------------------------------------------------------------------------ */

static void put_encoder(struct gguf_writer *w, const char *kind, const char *projector)
{
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"embedding_length", WIDTH}, {"feed_forward_length", WIDTH}, {"block_count", 1}, {"projection_dim", DIM}, {"attention.head_count", 1}};
    char key[64];
    for (size_t i = 0; i < BASE_COUNT(numbers); i++) {
        snprintf(key, sizeof key, "clip.%s.%s", kind, numbers[i].key);
        gguf_put_u32(w, key, numbers[i].value);
    }
    snprintf(key, sizeof key, "clip.%s.attention.layer_norm_epsilon", kind);
    gguf_put_f32(w, key, 1e-5f);
    snprintf(key, sizeof key, "clip.%s.projector_type", kind);
    gguf_put_str(w, key, str_of(projector));
}

/* A block that changes nothing. Whisper's has no bias of keys. */
static void add_block(struct file *f, char of)
{
    static const char *const attention[] = {"q", "k", "v", "out"}, *const norms[] = {"ln1", "ln2"}, *const ffn[] = {"up", "down"};
    char name[64];
    for (size_t i = 0; i < BASE_COUNT(attention); i++) {
        snprintf(name, sizeof name, "%c.blk.0.attn_%s.weight", of, attention[i]);
        add(f, name, WIDTH, WIDTH, 0, NULL, 0);
        snprintf(name, sizeof name, "%c.blk.0.attn_%s.bias", of, attention[i]);
        if (of == 'v' || i != 1)
            add(f, name, WIDTH, 0, 0, NULL, 0);
    }
    for (size_t i = 0; i < BASE_COUNT(norms); i++) {
        snprintf(name, sizeof name, "%c.blk.0.%s.weight", of, norms[i]);
        add(f, name, WIDTH, 0, 1, NULL, 0);
        snprintf(name, sizeof name, "%c.blk.0.%s.bias", of, norms[i]);
        add(f, name, WIDTH, 0, 0, NULL, 0);
    }
    for (size_t i = 0; i < BASE_COUNT(ffn); i++) {
        snprintf(name, sizeof name, "%c.blk.0.ffn_%s.weight", of, ffn[i]);
        add(f, name, WIDTH, WIDTH, 0, NULL, 0);
        snprintf(name, sizeof name, "%c.blk.0.ffn_%s.bias", of, ffn[i]);
        add(f, name, WIDTH, 0, 0, NULL, 0);
    }
}

static void add_eyes(struct file *f)
{
    static const float none[3] = {0, 0, 0}, one[3] = {1, 1, 1};
    static const uint64_t patch[4] = {PATCH, PATCH, 3, WIDTH};
    static struct entry e[3 * PATCH * PATCH];
    put_encoder(f->w, "vision", "mlp");
    gguf_put_u32(f->w, "clip.vision.image_size", SIDE);
    gguf_put_u32(f->w, "clip.vision.patch_size", PATCH);
    gguf_put_f32s(f->w, "clip.vision.image_mean", none, 3);
    gguf_put_f32s(f->w, "clip.vision.image_std", one, 3);
    /* feature c is the sum of channel c, of which the patch's rows lie one behind the other; large, so that the projector's gelu leaves it as it is */
    for (unsigned c = 0; c < 3; c++)
        for (unsigned i = 0; i < PATCH * PATCH; i++)
            e[c * PATCH * PATCH + i] = (struct entry){i % PATCH, (c * 3 + c) * PATCH + i / PATCH, 8.0f / (PATCH * PATCH)};
    add_shaped(f, "v.patch_embd.weight", patch, 0, e, BASE_COUNT(e));
    add(f, "v.position_embd.weight", WIDTH, (uint64_t)(SIDE / PATCH) * (SIDE / PATCH), 0, NULL, 0);
    add_block(f, 'v');
    for (unsigned i = 0; i < 3; i++)
        e[i] = (struct entry){i, i, 1};
    add(f, "mm.0.weight", WIDTH, WIDTH, 0, e, 3);
    add(f, "mm.0.bias", WIDTH, 0, 0, NULL, 0);
    for (unsigned i = 0; i < 3; i++)
        e[i] = (struct entry){i, FELT(SENSE_RED + i), 1};
    add(f, "mm.2.weight", WIDTH, DIM, 0, e, 3);
    add(f, "mm.2.bias", DIM, 0, 0, NULL, 0);
}

static void add_ears(struct file *f)
{
    static const uint64_t first[4] = {3, MEL, WIDTH}, second[4] = {3, WIDTH, WIDTH};
    const struct entry sound = {0, FELT(SENSE_SOUND), 1};
    put_encoder(f->w, "audio", "ultravox");
    gguf_put_u32(f->w, "clip.audio.num_mel_bins", MEL);
    gguf_put_u32(f->w, "clip.audio.projector.stack_factor", STACK);
    add_shaped(f, "a.conv1d.1.weight", first, 0, NULL, 0);
    add(f, "a.conv1d.1.bias", 1, WIDTH, 1, NULL, 0);
    add_shaped(f, "a.conv1d.2.weight", second, 0.1f, NULL, 0);
    add(f, "a.conv1d.2.bias", 1, WIDTH, 1, NULL, 0);
    add(f, "a.position_embd.weight", WIDTH, FRAMES, 0, NULL, 0);
    add_block(f, 'a');
    add(f, "a.post_ln.weight", WIDTH, 0, 0, NULL, 0);
    add(f, "a.post_ln.bias", WIDTH, 0, 1, NULL, 0);
    add(f, "mm.a.norm_pre.weight", (uint64_t)WIDTH * STACK, 0, 1, NULL, 0);
    add(f, "mm.a.norm_mid.weight", WIDTH, 0, 1, NULL, 0);
    add(f, "mm.a.mlp.1.weight", (uint64_t)WIDTH * STACK, (uint64_t)2 * WIDTH, 0.1f, NULL, 0);
    add(f, "mm.a.mlp.2.weight", WIDTH, DIM, 0, &sound, 1);
}

static void write_projector(const char *folder)
{
    struct file f = begin("clip");
    gguf_put_str(f.w, "general.type", STR("mmproj"));
    gguf_put_bool(f.w, "clip.has_vision_encoder", true);
    gguf_put_bool(f.w, "clip.has_audio_encoder", true);
    gguf_put_bool(f.w, "clip.use_gelu", true);
    add_eyes(&f);
    add_ears(&f);
    finish(&f, folder, "actor-mmproj.gguf");
}

int main(int argc, char **argv)
{
    struct err err;
    if (argc != 2) {
        fputs("usage: mkactor FOLDER\n", stderr);
        return 2;
    }
    write_model(argv[1]);
    write_projector(argv[1]);
    os_autoclose int dir = os_open_dir(argv[1], &err);
    if (dir < 0 || os_write_atomic(dir, "actor.jinja", template, strlen(template), 0644, &err) < 0)
        die(err.text);
    return 0;
}
