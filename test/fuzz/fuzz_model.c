/* SPDX-License-Identifier: MIT
 *
 * Models from any metadata: the input is a list of keys and values for one architecture, of which a header is written and loaded. What is accepted obeys the limits of model.h; what is refused says why.
 *
 * Input: architecture (1 byte), blocks (2), then records of key (1), kind (1: 0 scalar, 1 array for all blocks, else array of kind values) and the value (4) or values (1 each, of which 255 stands for UINT32_MAX).
 */
#include <model/model_int.h>

#include "../unit/memory_source.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const keys[] = {
    "context_length", "embedding_length", "embedding_length_out", "feed_forward_length", "vocab_size", "expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
    "leading_dense_block_count", "nextn_predict_layers", "full_attention_interval", "num_loops", "block_size", "target_layers", "extract_layers", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "attention.key_length_swa", "attention.value_length_swa", "attention.key_length_mla", "attention.value_length_mla", "attention.kv_lora_rank",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.recurrent_layers", "attention.shared_kv_layers", "attention.indexer.key_length", "attention.indexer.types",
    "attention.compress_ratios", "attention.causal", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count", "wkv.head_size", "token_shift_count", "shortconv.l_cache", "kda.head_dim",
    "ple.layers", "ple.conv_kernel", "ple.ngram_size", "hyper_connection.count", "rope.dimension_sections",
};
static const char *const tensors[] = {"token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.1.ffn_up_exps.weight", "markov_w1.weight", "rope_freqs.weight"};

struct input {
    const uint8_t *at;
    size_t left;
};

static uint32_t take(struct input *in, size_t bytes)
{
    uint32_t v = 0;

    for (; bytes > 0 && in->left > 0; bytes--, in->at++, in->left--)
        v = v << 8 | *in->at;
    return v;
}

static void put_key(struct gguf_writer *w, const char *arch, uint32_t blocks, struct input *in)
{
    char key[128];
    uint32_t kind, n, v[600] = {0};

    (void)snprintf(key, sizeof(key), "%s.%s", arch, keys[take(in, 1) % BASE_COUNT(keys)]);
    kind = take(in, 1);
    if (kind == 0) {
        gguf_put_u32(w, key, take(in, 4));
        return;
    }
    n = kind == 1 ? blocks : kind;
    for (uint32_t i = 0; i < n && i < BASE_COUNT(v); i++) {
        v[i] = take(in, 1);
        v[i] = v[i] == 255 ? UINT32_MAX : v[i];
    }
    gguf_put_u32s(w, key, v, n < BASE_COUNT(v) ? n : BASE_COUNT(v));
}

static int write_header(struct input *in, struct buf *head, uint64_t *ret_data)
{
    struct gguf_writer *w = gguf_writer_new();
    size_t n_archs = 0, left;
    const char *arch;
    char key[128];
    uint32_t blocks, which;
    int r;

    if (!w)
        abort();
    while (model_arch(n_archs))
        n_archs++;
    arch = model_arch(take(in, 1) % n_archs);
    if (!arch)
        abort();
    blocks = take(in, 2) % 600;
    which = take(in, 1);
    gguf_put_str(w, "general.architecture", str_of(arch));
    (void)snprintf(key, sizeof(key), "%s.block_count", arch);
    gguf_put_u32(w, key, blocks);
    for (left = in->left + 1; in->left > 0 && in->left < left;) {
        left = in->left;
        put_key(w, arch, blocks, in);
    }
    for (size_t i = 0; i < BASE_COUNT(tensors); i++)
        if (which & 1u << i)
            gguf_put_tensor(w, tensors[i], 1, (const uint64_t[]){32, 4}, 2);
    r = gguf_writer_header(w, head, ret_data, NULL);
    (void)gguf_writer_free(w);
    return r;
}

static void check(const struct model *m)
{
    uint64_t bytes = 0;

    if (!m->known || m->n_layer > MODEL_LAYERS_MAX || m->n_block > m->n_layer || m->n_nextn > m->n_block)
        abort();
    for (uint32_t i = 0; i < m->n_layer; i++) {
        const struct model_layer *y = &m->layers[i];

        if (y->k_width > 1ull << 32 || y->v_width > 1ull << 32 || y->r_elems > 1ull << 32 || y->s_elems > 1ull << 32 || y->ple_elems > 1ull << 32 || (y->swa && m->window == 0 && y->attention))
            abort();
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        bytes += m->tensors[i].bytes;
        if (m->tensors[i].layer >= (int32_t)m->n_layer)
            abort();
    }
    if (bytes != m->weight_bytes || (m->tied_output && !model_tied_tensor(m)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    base_autobuf struct buf head = BUF_INIT(4u << 20), kinds = BUF_INIT(1024);
    struct memory_source source;
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct err err = {.text = ""};
    uint64_t data_bytes = 0;
    const struct gguf *part;

    if (size > 4096 || write_header(&in, &head, &data_bytes) < 0)
        return 0; /* a key twice */
    if (gguf_open(memory_source_init(&source, head.ptr, head.len, head.len + data_bytes), &g, NULL) < 0)
        abort();
    part = g;
    if (model_load(&part, 1, &m, &err) == 0) {
        check(m);
        model_kinds(m, &kinds);
        if (buf_status(&kinds) < 0)
            abort();
    } else if (m || !err.text[0]) {
        abort();
    }
    (void)model_free(m);
    (void)gguf_free(g);
    return 0;
}
