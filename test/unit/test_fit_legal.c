/* SPDX-License-Identifier: MIT
 *
 * Every rule once where it must be silent and once where it must speak, with the severity that it has; the rules' names are those of docs/fit.md.
 */
#include "fit_aid.h"

#include "../../src/fit/fit_int.h"

/* Models that the cases take their pick of. */
static struct model *llama, *gemma, *moe, *hybrid27, *windowed, *whole, *dspark, *dspark_bare, *mla, *tiny, *odd_heads, *stranger, *jamba, *grok, *encoder, *llama4, *table, *assistant, *kimi, *wide;

static struct model *small(const char *arch, uint32_t kv_heads, uint32_t head, uint32_t vocab)
{
    struct made f = made_sized(arch, 2, 256, 4, kv_heads, head, 512, vocab, 4096);

    made_key(&f, "expert_count", 2);
    made_key(&f, "expert_used_count", 1);
    made_ends(&f, 256, vocab);
    for (uint32_t il = 0; il < 2; il++) {
        made_attention(&f, il, 256, 256, 128, Q4_0, Q4_0);
        made_ffn(&f, il, 256, 512, 35u /* tq2_0 */, Q4_0);
    }
    return made_load(&f);
}

static struct model *small_mla(void)
{
    struct made f = made_sized("deepseek2", 2, 128, 2, 1, 576, 256, 128, 4096);

    made_key(&f, "attention.key_length_mla", 192);
    made_key(&f, "attention.value_length_mla", 128);
    made_key(&f, "attention.kv_lora_rank", 512);
    made_ends(&f, 128, 128);
    return made_load(&f);
}

static struct model *small_jamba(void)
{
    struct made f = made_sized("jamba", 2, 256, 4, 2, 64, 512, 128, 4096);

    f = (made_done(&f), made_bare("jamba"));
    made_key(&f, "context_length", 4096);
    made_key(&f, "embedding_length", 256);
    made_key(&f, "block_count", 2);
    made_key(&f, "feed_forward_length", 512);
    made_key(&f, "attention.head_count", 4);
    MADE_KEYS(&f, "attention.head_count_kv", 0, 2);
    made_key(&f, "vocab_size", 128);
    made_key(&f, "ssm.conv_kernel", 4);
    made_key(&f, "ssm.inner_size", 512);
    made_key(&f, "ssm.state_size", 16);
    made_key(&f, "ssm.time_step_rank", 16);
    gguf_put_str(f.w, "tokenizer.ggml.model", STR("none"));
    made_ends(&f, 256, 128);
    return made_load(&f);
}

static struct model *small_kimi(void)
{
    struct made f = made_bare("kimi-linear");

    made_key(&f, "context_length", 4096);
    made_key(&f, "embedding_length", 128);
    made_key(&f, "block_count", 2);
    made_key(&f, "feed_forward_length", 256);
    made_key(&f, "attention.head_count", 2);
    MADE_KEYS(&f, "attention.head_count_kv", 0, 1);
    made_key(&f, "attention.key_length", 576);
    made_key(&f, "attention.value_length", 512);
    made_key(&f, "attention.key_length_mla", 192);
    made_key(&f, "attention.value_length_mla", 128);
    made_key(&f, "attention.kv_lora_rank", 512);
    made_key(&f, "kda.head_dim", 64);
    made_key(&f, "ssm.conv_kernel", 4);
    made_key(&f, "expert_count", 2);
    made_key(&f, "expert_used_count", 1);
    made_key(&f, "vocab_size", 128);
    gguf_put_str(f.w, "tokenizer.ggml.model", STR("none"));
    made_ends(&f, 128, 128);
    return made_load(&f);
}

/* gemma4 with a table of per-layer embeddings of over 4 GiB, and its own drafter. */
static struct model *small_table(const char *arch)
{
    struct made f = made_sized(arch, 2, 256, 4, 2, 64, 512, 262144, 4096);

    made_key(&f, "attention.sliding_window", 512);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 0);
    made_key(&f, "attention.key_length_swa", 64);
    made_key(&f, "attention.value_length_swa", 64);
    made_key(&f, "embedding_length_per_layer_input", 256);
    made_key(&f, "attention.shared_kv_layers", 0);
    made_ends(&f, 256, 262144);
    made_tensor(&f, "per_layer_token_embd.weight", F16, 10240, 262144, 0);
    for (uint32_t il = 0; il < 2; il++) {
        made_attention(&f, il, 256, 256, 128, F16, F16);
        made_ffn(&f, il, 256, 512, F16, F16);
    }
    return made_load(&f);
}

static int build(void **state)
{
    (void)state;
    llama = made_llama_8b();
    gemma = made_gemma3_12b();
    moe = made_qwen3_30b();
    hybrid27 = made_27b();
    windowed = made_drafter(2048, false, false);
    whole = made_drafter(0, false, false);
    dspark = made_drafter(0, true, true);
    dspark_bare = made_drafter(0, true, false);
    mla = small_mla();
    tiny = small("llama", 2, 64, 128);
    odd_heads = small("llama", 2, 80, 128);
    stranger = small("zzz-new", 2, 64, 128);
    grok = small("grok", 2, 64, 128);
    encoder = small("t5encoder", 2, 64, 128);
    llama4 = small("llama4", 4, 64, 128);
    wide = small("llama", 2, 64, 512);
    jamba = small_jamba();
    kimi = small_kimi();
    table = small_table("gemma4");
    assistant = small_table("gemma4-assistant");
    return 0;
}

static int done(void **state)
{
    (void)state;
    struct model *all[] = {llama, gemma, moe, hybrid27, windowed, whole, dspark, dspark_bare, mla, tiny, odd_heads, stranger, jamba, grok, table, assistant, kimi, wide, encoder, llama4};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        (void)model_free(all[i]);
    return 0;
}

/* Where nothing is to be said: a plain model, all numbers given. */
static void quiet(struct rig *x, struct model *m)
{
    rig_init(x, m, 2);
    rig_split(x, 1, 1);
    x->shape.context = 4096;
}

static void expect(struct rig *x, const char *rule, enum fit_severity severity)
{
    rig_predict(x);
    const struct fit_note *n = note_of(&x->r, rule);
    if (!n)
        fail_msg("'%s' is silent", rule);
    assert_int_equal(n->severity, severity);
    assert_true(strlen(n->text) > 20);
    if (severity == FIT_REFUSED)
        assert_false(x->r.fits);
}

static void expect_silence(struct rig *x, const char *rule)
{
    rig_predict(x);
    const struct fit_note *n = note_of(&x->r, rule);
    if (n)
        fail_msg("'%s' speaks: %s", rule, n->text);
}

#define AT_REST(rule, model)     \
    struct rig x;                \
    quiet(&x, model);            \
    expect_silence(&x, rule)

static void build_and_architecture(void **state)
{
    (void)state;
    {
        AT_REST("engine-unproven", llama);
        x.in.engine_version = "0.8.1";
        expect(&x, "engine-unproven", FIT_NOTE);
        x.in.engine_version = NULL;
        expect(&x, "engine-unproven", FIT_NOTE);
        rig_done(&x);
    }
    {
        AT_REST("arch-unknown", llama);
        x.in.target = stranger;
        expect(&x, "arch-unknown", FIT_WARNING);
        assert_true(strstr(note_of(&x.r, "arch-unknown")->text, "zzz-new") != NULL);
        rig_done(&x);
    }
    {
        AT_REST("engine-assert", encoder);
        x.shape.slots = 2;
        expect(&x, "engine-assert", FIT_REFUSED);
        assert_true(strstr(note_of(&x.r, "engine-assert")->text, "unified-kv") != NULL);
        x.shape.unified = true;
        expect_silence(&x, "engine-assert");
        x.shape.unified = false;
        x.in.program = FIT_TOOL; /* which never computes */
        expect_silence(&x, "engine-assert");
        rig_done(&x);
    }
    {
        AT_REST("engine-assert", llama4);
        llama4->window = 0;
        expect(&x, "engine-assert", FIT_REFUSED);
        llama4->window = 8192;
        llama4->layers[1].index_chooses = true;
        llama4->index_key = llama4->rope_dims;
        expect_silence(&x, "engine-assert");
        llama4->index_key = llama4->rope_dims - 1;
        expect(&x, "engine-assert", FIT_REFUSED);
        llama4->layers[1].index_chooses = false;
        rig_done(&x);
    }
}

static void sizes(void **state)
{
    (void)state;
    {
        AT_REST("context-rounded", llama);
        x.shape.context = 1000;
        x.shape.slots = 3;
        expect(&x, "context-rounded", FIT_NOTE);
        assert_int_equal(x.r.n_ctx, 1536);
        rig_done(&x);
    }
    {
        AT_REST("context-trained", llama);
        x.shape.context = 131072;
        expect_silence(&x, "context-trained");
        x.shape.context = 262144;
        expect(&x, "context-trained", FIT_WARNING);
        x.shape.slots = 2; /* what counts is a slot's part */
        expect_silence(&x, "context-trained");
        x.shape.unified = true;
        expect(&x, "context-trained", FIT_WARNING);
        x.shape.context_declared = true; /* then the engine gives less than was asked */
        expect(&x, "context-trained", FIT_REFUSED);
        x.shape.slot_cap = 131072;
        expect_silence(&x, "context-trained");
        x.shape.slot_cap = 0;
        x.shape.unified = false;
        x.shape.slots = 1;
        expect(&x, "context-trained", FIT_REFUSED);
        x.in.program = FIT_TOOL; /* which extrapolates */
        expect(&x, "context-trained", FIT_WARNING);
        rig_done(&x);
    }
    {
        AT_REST("slots-split", llama);
        x.shape.slots = 2;
        expect(&x, "slots-split", FIT_NOTE);
        x.shape.unified = true;
        expect_silence(&x, "slots-split");
        rig_done(&x);
    }
    {
        AT_REST("slots-ubatch", kimi);
        x.shape.slots = 3;
        expect(&x, "slots-ubatch", FIT_REFUSED);
        x.shape.ubatch = 510;
        expect_silence(&x, "slots-ubatch");
        x.in.target = llama;
        x.shape.ubatch = 512;
        expect_silence(&x, "slots-ubatch");
        rig_done(&x);
    }
    {
        AT_REST("ubatch-lowered", llama);
        x.shape.batch = 256;
        expect(&x, "ubatch-lowered", FIT_NOTE);
        assert_int_equal(x.r.n_ubatch, 256);
        rig_done(&x);
    }
}

static void kv_types(void **state)
{
    (void)state;
    const struct gguf_type *q8 = gguf_type_get(Q8_0), *q4 = gguf_type_get(Q4_0), *f16 = gguf_type_get(F16);
    {
        AT_REST("kv-type", llama);
        x.shape.k_type = gguf_type_get(Q4_K);
        expect(&x, "kv-type", FIT_REFUSED);
        rig_done(&x);
    }
    {
        AT_REST("kv-quantized-v", llama);
        x.shape.k_type = q8;
        x.shape.flash = FLEET_OFF;
        expect_silence(&x, "kv-quantized-v");
        x.shape.v_type = q8;
        expect(&x, "kv-quantized-v", FIT_REFUSED);
        assert_true(strstr(note_of(&x.r, "kv-quantized-v")->text, "quantized V cache requires flash_attn to be enabled") != NULL);
        x.shape.flash = FLEET_AUTO;
        expect_silence(&x, "kv-quantized-v");
        x.in.target = grok; /* cannot use it */
        expect(&x, "kv-quantized-v", FIT_REFUSED);
        rig_done(&x);
    }
    {
        AT_REST("kv-block", odd_heads);
        x.shape.k_type = q8;
        expect(&x, "kv-block", FIT_REFUSED);
        assert_true(strstr(note_of(&x.r, "kv-block")->text, "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80") != NULL);
        x.shape.k_type = f16;
        x.shape.v_type = q8;
        expect(&x, "kv-block", FIT_REFUSED);
        x.in.target = llama;
        expect_silence(&x, "kv-block");
        rig_done(&x);
    }
    {
        AT_REST("kv-types-differ", mla);
        x.shape.k_type = q8;
        expect(&x, "kv-types-differ", FIT_REFUSED);
        x.shape.v_type = q8;
        expect_silence(&x, "kv-types-differ");
        x.in.target = llama;
        x.shape.v_type = f16;
        expect_silence(&x, "kv-types-differ");
        rig_done(&x);
    }
    {
        AT_REST("kv-kernel", llama);
        x.shape.k_type = q8;
        x.shape.v_type = q4;
        expect_silence(&x, "kv-kernel"); /* no such device */
        x.devices[0].backend = FIT_HIP;
        expect(&x, "kv-kernel", FIT_WARNING);
        x.shape.v_type = q8;
        expect_silence(&x, "kv-kernel");
        rig_done(&x);
    }
    {
        AT_REST("kv-scratch", llama);
        x.devices[0].backend = x.devices[1].backend = FIT_CUDA;
        expect_silence(&x, "kv-scratch");
        x.shape.k_type = x.shape.v_type = q8;
        expect(&x, "kv-scratch", FIT_NOTE);
        assert_true(x.r.use[0].terms[FIT_COMPUTE].high - term(&x, 0, FIT_COMPUTE) > 2ull * 4096 * (1024 + 1024));
        rig_done(&x);
    }
    {
        AT_REST("flash-off", grok);
        x.shape.flash = FLEET_ON;
        expect(&x, "flash-off", FIT_WARNING);
        rig_done(&x);
    }
    {
        AT_REST("flash-auto", hybrid27);
        x.shape.gpu_layers = 10;
        expect(&x, "flash-auto", FIT_WARNING);
        x.shape.flash = FLEET_ON;
        expect_silence(&x, "flash-auto");
        x.shape.flash = FLEET_AUTO;
        x.in.target = llama;
        expect_silence(&x, "flash-auto");
        rig_done(&x);
    }
}

static void places(void **state)
{
    (void)state;
    {
        AT_REST("split-free", llama);
        x.shape.n_split = 0;
        expect(&x, "split-free", FIT_WARNING);
        x.in.n_devices = 1;
        expect_silence(&x, "split-free");
        rig_done(&x);
    }
    {
        AT_REST("split-zero", llama);
        rig_split(&x, 1, 0);
        expect(&x, "split-zero", FIT_NOTE);
        rig_done(&x);
    }
    {
        AT_REST("split-mode", llama);
        x.shape.split_mode = FIT_SPLIT_ROW;
        expect(&x, "split-mode", FIT_REFUSED);
        x.devices[0].backend = x.devices[1].backend = FIT_CUDA;
        expect(&x, "split-mode", FIT_WARNING);
        x.shape.split_mode = FIT_SPLIT_TENSOR;
        expect(&x, "split-mode", FIT_WARNING);
        x.shape.flash = FLEET_OFF;
        expect(&x, "split-mode", FIT_REFUSED);
        x.shape.flash = FLEET_AUTO;
        x.in.target = mla;
        expect(&x, "split-mode", FIT_REFUSED);
        x.shape.flash = FLEET_AUTO;
        x.in.target = llama;
        x.shape.split_mode = FIT_SPLIT_LAYER;
        rig_predict(&x);
        const uint64_t sum = term(&x, 0, FIT_WEIGHTS) + term(&x, 1, FIT_WEIGHTS), kv = term(&x, 0, FIT_KV) + term(&x, 1, FIT_KV);
        x.shape.split_mode = FIT_SPLIT_TENSOR;
        rig_predict(&x);
        assert_int_equal(x.r.use[0].terms[FIT_WEIGHTS].known, FIT_UNPREDICTED);
        assert_int_equal(term(&x, 0, FIT_WEIGHTS), sum / 2);
        assert_int_equal(term(&x, 1, FIT_KV), kv / 2);
        assert_int_equal(x.r.use[1].terms[FIT_WEIGHTS].high, sum);
        rig_done(&x);
    }
    {
        AT_REST("main-gpu", llama);
        x.shape.split_mode = FIT_SPLIT_NONE;
        x.shape.main_gpu = 7;
        expect(&x, "main-gpu", FIT_REFUSED);
        x.shape.main_gpu = 1;
        expect_silence(&x, "main-gpu");
        rig_done(&x);
    }
    {
        AT_REST("nextn-count", hybrid27);
        x.shape.gpu_layers = 65; /* 64 layers and the output, one would think */
        expect(&x, "nextn-count", FIT_WARNING);
        assert_int_equal(x.r.layer_device[0], 2);
        x.shape.gpu_layers = 66;
        expect_silence(&x, "nextn-count");
        assert_int_equal(x.r.layer_device[0], 0);
        x.in.target = llama;
        x.shape.gpu_layers = 32;
        expect_silence(&x, "nextn-count");
        rig_done(&x);
    }
    {
        AT_REST("moe-cache", llama);
        x.shape.moe_cache_bytes = GIB;
        expect(&x, "moe-cache", FIT_REFUSED);
        x.in.target = moe;
        expect_silence(&x, "moe-cache");
        x.in.n_devices = 0;
        expect(&x, "moe-cache", FIT_REFUSED);
        x.in.engine_version = "0.4.0"; /* has no such flag */
        expect_silence(&x, "moe-cache");
        rig_done(&x);
    }
    {
        struct rig x;
        quiet(&x, llama);
        expect(&x, "pipeline-copies", FIT_NOTE);
        x.shape.cpu_moe = 1;
        expect_silence(&x, "pipeline-copies");
        rig_done(&x);
    }
    {
        AT_REST("repack-host", tiny);
        x.host.repack = true;
        x.shape.gpu_layers = 0;
        expect(&x, "repack-host", FIT_NOTE);
        rig_done(&x);
    }
    {
        AT_REST("lazy-table", llama);
        x.in.target = table;
        expect_silence(&x, "lazy-table"); /* nothing is mapped */
        x.shape.no_mmap = false;
        expect(&x, "lazy-table", FIT_NOTE);
        x.in.engine_version = "0.4.0";
        expect_silence(&x, "lazy-table");
        rig_done(&x);
    }
    {
        AT_REST("adapters", llama);
        x.shape.adapters = true;
        expect(&x, "adapters", FIT_WARNING);
        rig_done(&x);
    }
}

static void overrides(void **state)
{
    (void)state;
    struct rig x;

    quiet(&x, tiny);
    x.shape.overrides[0] = (struct fit_override){"ffn_up", "CPU"};
    x.shape.n_overrides = 1;
    expect_silence(&x, "override-unmatched");
    expect_silence(&x, "override-buffer");
    expect_silence(&x, "override-kernel");
    x.shape.overrides[1] = (struct fit_override){"ffn_up\\.weight", "CPU"}; /* taken by the first */
    x.shape.n_overrides = 2;
    expect(&x, "override-unmatched", FIT_WARNING);
    x.shape.overrides[1] = (struct fit_override){"attn_q", "CUDA9"};
    expect(&x, "override-buffer", FIT_REFUSED);
    x.devices[0].backend = FIT_CUDA;
    x.shape.overrides[0] = (struct fit_override){"ffn_gate", "RPC0"};
    expect(&x, "override-kernel", FIT_WARNING);
    x.shape.n_overrides = 0;
    x.in.drafter = tiny;
    x.shape.spec = FIT_SPEC_SIMPLE;
    x.shape.draft_overrides[0] = (struct fit_override){"nothing", "CPU"};
    x.shape.n_draft_overrides = 1;
    expect(&x, "override-unmatched", FIT_WARNING);
    rig_done(&x);
}

static void memory_of_the_host(void **state)
{
    (void)state;
    {
        AT_REST("prompt-cache-small", hybrid27);
        x.shape.context = 196608;
        x.shape.prompt_cache_bytes = 8192 * MIB;
        expect(&x, "prompt-cache-small", FIT_WARNING);
        x.shape.prompt_cache_bytes = 16384 * MIB;
        expect_silence(&x, "prompt-cache-small");
        rig_done(&x);
    }
    {
        AT_REST("prompt-cache-large", llama);
        x.host.total_bytes = 32 * GIB;
        x.shape.prompt_cache_bytes = 16 * GIB;
        expect_silence(&x, "prompt-cache-large");
        x.shape.prompt_cache_bytes = 16 * GIB + MIB;
        expect(&x, "prompt-cache-large", FIT_WARNING);
        x.shape.prompt_cache_bytes = UINT64_MAX;
        expect(&x, "prompt-cache-large", FIT_WARNING);
        rig_done(&x);
    }
    {
        AT_REST("checkpoints-large", llama);
        x.in.target = hybrid27;
        x.shape.checkpoints = 2;
        expect_silence(&x, "checkpoints-large");
        x.shape.checkpoints = 32;
        x.shape.slots = 4;
        expect(&x, "checkpoints-large", FIT_NOTE);
        x.in.target = llama; /* can be cut anywhere */
        expect_silence(&x, "checkpoints-large");
        rig_done(&x);
    }
}

static void drafters(void **state)
{
    (void)state;
    {
        AT_REST("spec-two", hybrid27);
        x.shape.spec = FIT_SPEC_MTP | FIT_SPEC_NGRAM_MOD | FIT_SPEC_NGRAM_SIMPLE;
        expect_silence(&x, "spec-two");
        x.shape.spec |= FIT_SPEC_DFLASH;
        expect(&x, "spec-two", FIT_REFUSED);
        rig_done(&x);
    }
    {
        AT_REST("drafter-unused", hybrid27);
        x.in.drafter = windowed;
        x.shape.spec = FIT_SPEC_NGRAM_MOD;
        expect(&x, "drafter-unused", FIT_WARNING);
        assert_int_equal(x.r.use[1].terms[FIT_DRAFT_WEIGHTS].bytes, 0);
        x.shape.spec = FIT_SPEC_DFLASH;
        expect_silence(&x, "drafter-unused");
        assert_true(x.r.use[1].terms[FIT_DRAFT_WEIGHTS].bytes > 0);
        rig_done(&x);
    }
    {
        AT_REST("drafter-missing", hybrid27);
        for (unsigned bit = FIT_SPEC_SIMPLE; bit <= FIT_SPEC_DSPARK; bit <<= 1) {
            x.shape.spec = bit;
            if (bit == FIT_SPEC_MTP)
                expect_silence(&x, "drafter-missing");
            else
                expect(&x, "drafter-missing", FIT_WARNING);
        }
        rig_done(&x);
    }
    {
        AT_REST("drafter-kind", hybrid27);
        x.in.drafter = windowed;
        x.shape.spec = FIT_SPEC_DFLASH;
        expect_silence(&x, "drafter-kind");
        x.shape.spec = FIT_SPEC_EAGLE3;
        expect(&x, "drafter-kind", FIT_WARNING);
        x.shape.spec = FIT_SPEC_DSPARK;
        expect(&x, "drafter-kind", FIT_REFUSED);
        rig_done(&x);
    }
    {
        AT_REST("mtp-nextn", hybrid27);
        x.shape.spec = FIT_SPEC_MTP;
        expect_silence(&x, "mtp-nextn");
        x.in.target = llama;
        expect(&x, "mtp-nextn", FIT_REFUSED);
        rig_done(&x);
    }
    {
        AT_REST("mtp-table", table);
        x.in.drafter = assistant;
        x.shape.spec = FIT_SPEC_MTP;
        expect_silence(&x, "mtp-table");
        x.shape.overrides[0] = (struct fit_override){"per_layer_token", "RPC0"};
        x.shape.n_overrides = 1;
        expect(&x, "mtp-table", FIT_REFUSED);
        rig_done(&x);
    }
    {
        AT_REST("draft-depth", hybrid27);
        x.in.drafter = windowed;
        x.shape.spec = FIT_SPEC_DFLASH;
        x.shape.draft_max = 7;
        expect_silence(&x, "draft-depth");
        assert_int_equal(x.r.draft_max, 7);
        x.shape.draft_max = 12;
        expect(&x, "draft-depth", FIT_WARNING);
        assert_int_equal(x.r.draft_max, 7);
        rig_done(&x);
    }
    {
        AT_REST("dspark-confidence", hybrid27);
        x.in.drafter = dspark_bare;
        x.shape.spec = FIT_SPEC_DSPARK;
        expect_silence(&x, "dspark-confidence");
        x.shape.draft_p_min = 0.5;
        expect(&x, "dspark-confidence", FIT_REFUSED);
        x.in.drafter = dspark;
        expect_silence(&x, "dspark-confidence");
        rig_done(&x);
    }
    {
        AT_REST("drafter-window", hybrid27);
        x.in.drafter = windowed;
        x.shape.spec = FIT_SPEC_DFLASH;
        expect_silence(&x, "drafter-window");
        x.in.drafter = whole;
        expect(&x, "drafter-window", FIT_WARNING);
        x.in.drafter = dspark;
        x.shape.spec = FIT_SPEC_DSPARK;
        expect(&x, "drafter-window", FIT_WARNING);
        rig_done(&x);
    }
    {
        AT_REST("spec-rollback", jamba);
        x.in.drafter = tiny;
        x.shape.spec = FIT_SPEC_SIMPLE;
        expect(&x, "spec-rollback", FIT_WARNING);
        x.in.target = hybrid27;
        expect_silence(&x, "spec-rollback");
        rig_done(&x);
    }
    {
        AT_REST("draft-vocab", tiny);
        x.in.drafter = tiny;
        x.shape.spec = FIT_SPEC_SIMPLE;
        expect_silence(&x, "draft-vocab");
        x.in.drafter = wide;
        expect(&x, "draft-vocab", FIT_WARNING);
        rig_done(&x);
    }
    {
        AT_REST("draft-vocab", hybrid27);
        x.in.drafter = dspark;
        x.shape.spec = FIT_SPEC_DSPARK;
        expect_silence(&x, "draft-vocab");
        hybrid27->vocab--;
        expect(&x, "draft-vocab", FIT_REFUSED);
        hybrid27->vocab++;
        rig_done(&x);
    }
}

/* Every rule has a paragraph, and every paragraph a rule. */
static void documented(void **state)
{
    (void)state;
    static char text[128 * 1024];
    FILE *f = fopen("docs/fit.md", "r");
    size_t n = 0, named = 0;

    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = 0;
    (void)fclose(f);
    for (size_t i = 0; fit_rule_name(i); i++, n++) {
        char row[64];
        (void)snprintf(row, sizeof(row), "\n| `%s` |", fit_rule_name(i));
        if (!strstr(text, row))
            fail_msg("docs/fit.md does not know '%s'", fit_rule_name(i));
    }
    const char *rules = strstr(text, "## Rules");
    assert_non_null(rules);
    for (const char *p = rules; (p = strstr(p, "\n| `")); p++)
        named++;
    assert_int_equal(named, n);
    assert_true(n > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(build_and_architecture), cmocka_unit_test(sizes), cmocka_unit_test(kv_types), cmocka_unit_test(places), cmocka_unit_test(overrides),
        cmocka_unit_test(memory_of_the_host),     cmocka_unit_test(drafters), cmocka_unit_test(documented),
    };
    return cmocka_run_group_tests(tests, build, done);
}
