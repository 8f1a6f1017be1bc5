/* SPDX-License-Identifier: MIT
 *
 * Weights and caches on devices: the worked examples of the laws, whose bytes the engine itself reported, and the corners of the split.
 */
#include "fit_aid.h"

#include <math.h>

static void llama_8b(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 8192;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].n_layers, 17);
    assert_int_equal(x.r.use[1].n_layers, 16); /* the output is one */
    assert_int_equal(context_bytes(&x, 0), 570425344);
    assert_int_equal(context_bytes(&x, 1), 503316480);
    assert_int_equal(context_bytes(&x, 2), 0);
    assert_int_equal(model_bytes(&x, 0), 2361917440);
    assert_int_equal(model_bytes(&x, 1), 2515001344);
    assert_int_equal(model_bytes(&x, 2), 295501824);
    assert_true(x.r.fits);
    assert_true(x.r.pipeline);
    rig_done(&x);
    m = model_free(m);
}

static void gemma3_12b(void **state)
{
    (void)state;
    struct model *m = made_gemma3_12b();
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 32768;
    x.shape.slots = 2;
    rig_predict(&x);
    assert_int_equal(x.r.n_ctx_seq, 16384);
    assert_int_equal(context_bytes(&x, 0), 1602224128);
    assert_int_equal(context_bytes(&x, 1), 1551892480);
    assert_int_equal(model_bytes(&x, 0), 3584307200);
    assert_int_equal(model_bytes(&x, 1), 3863809024); /* the tied copy is in it */
    assert_int_equal(model_bytes(&x, 2), 566231040);

    /* unified: the windows of all slots lie in one stream */
    x.shape.unified = true;
    x.shape.slots = 4;
    rig_predict(&x);
    assert_int_equal(x.r.n_stream, 1);
    assert_int_equal(context_bytes(&x, 0), 4ull * 32768 * 2048 * 2 * 2 + 21ull * 4608 * 2048 * 2 * 2);

    /* without a window every layer is a dense one */
    x.shape.swa_full = true;
    rig_predict(&x);
    assert_int_equal(context_bytes(&x, 0), 25ull * 32768 * 2048 * 2 * 2);

    /* on the CPU alone the head is the embedding itself */
    x.in.n_devices = 0;
    rig_predict(&x);
    assert_int_equal(model_bytes(&x, 0), 3584307200ull + 3863809024ull);
    rig_done(&x);
    m = model_free(m);
}

static void qwen3_30b(void **state)
{
    (void)state;
    struct model *m = made_qwen3_30b();
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 36, 13);
    x.shape.context = 16384;
    rig_predict(&x);
    assert_int_equal(context_bytes(&x, 0), 1207959552);
    assert_int_equal(context_bytes(&x, 1), 402653184);
    assert_int_equal(model_bytes(&x, 0), 14529466368);
    assert_int_equal(model_bytes(&x, 1), 5098416128);
    assert_int_equal(x.r.layer_device[35], 0);
    assert_int_equal(x.r.layer_device[36], 1);
    assert_int_equal(x.r.layer_device[48], 1);

    /* all experts on the CPU: what stays is attention, routing and the output */
    const uint64_t experts = 2ull * 2048 * 768 * 128 / 256 * 144 + 768ull * 2048 * 128 / 256 * 210;
    x.shape.cpu_moe = UINT32_MAX;
    rig_predict(&x);
    assert_int_equal(model_bytes(&x, 0), 14529466368 - 36 * experts);
    assert_int_equal(model_bytes(&x, 2), 2048ull * 151936 / 256 * 144 + 48 * experts);
    assert_false(x.r.pipeline); /* overrides end it */
    x.shape.cpu_moe = 3;
    rig_predict(&x);
    assert_int_equal(model_bytes(&x, 0), 14529466368 - 3 * experts);
    assert_int_equal(model_bytes(&x, 1), 5098416128);
    rig_done(&x);
    m = model_free(m);
}

static void hybrids(void **state)
{
    (void)state;
    struct model *m = made_hybrid(8, 512, 64, 4, 2, 64);
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 4096;
    x.shape.slots = 2;
    rig_predict(&x);
    assert_int_equal(context_bytes(&x, 0), 3244032);
    assert_int_equal(context_bytes(&x, 1), 2670592);
    assert_int_equal(term(&x, 0, FIT_STATE), 4 * 2 * 143360);
    assert_int_equal(x.r.n_rs_rows, 2);
    rig_done(&x);
    m = model_free(m);

    m = made_hybrid(48, 4096, 128, 16, 2, 256);
    rig_init(&x, m, 2);
    rig_split(&x, 3, 2);
    x.shape.context = 65536;
    x.shape.slots = 2;
    rig_predict(&x);
    assert_int_equal(context_bytes(&x, 0), 1040515072);
    assert_int_equal(context_bytes(&x, 1), 728170496);
    /* state does not go with the KV types, KV does */
    const uint64_t state_bytes = term(&x, 0, FIT_STATE);
    x.shape.k_type = x.shape.v_type = gguf_type_get(Q8_0);
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_STATE), state_bytes);
    assert_int_equal(term(&x, 0, FIT_KV), 7ull * 2 * 65536 * (512 / 32 * 34));
    /* nothing of a context is left on a device */
    x.shape.kv_on_cpu = true;
    rig_predict(&x);
    assert_int_equal(context_bytes(&x, 0) + context_bytes(&x, 1), 0);
    assert_int_equal(term(&x, 2, FIT_STATE), 36ull * 2 * 2195456);
    rig_done(&x);
    m = model_free(m);
}

/* gpt-oss-20B's caches: 15/25 is not below 0.6 in float32. */
static void gpt_oss(void **state)
{
    (void)state;
    struct made f = made_sized("gpt-oss", 24, 2880, 64, 8, 64, 2880, 256, 131072);
    made_key(&f, "attention.sliding_window", 128);
    made_key(&f, "expert_count", 32);
    made_key(&f, "expert_used_count", 4);
    made_key(&f, "expert_feed_forward_length", 2880);
    made_ends(&f, 2880, 256);
    struct model *m = made_load(&f);
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 3, 2);
    x.shape.context = 65536;
    x.shape.slots = 2;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].n_layers, 15);
    assert_int_equal(context_bytes(&x, 0), 964689920);
    assert_int_equal(context_bytes(&x, 1), 683671552);
    rig_done(&x);
    m = model_free(m);
}

static void layers_and_shares(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    struct rig x;

    /* a few layers only: the last ones and the output */
    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 4096;
    x.shape.gpu_layers = 5;
    rig_predict(&x);
    assert_int_equal(x.r.layer_device[27], 2);
    assert_int_equal(x.r.layer_device[28], 0);
    assert_int_equal(x.r.layer_device[30], 0);
    assert_int_equal(x.r.layer_device[31], 1);
    assert_int_equal(x.r.layer_device[32], 1);
    assert_int_equal(x.r.use[2].n_layers, 28);
    assert_false(x.r.pipeline);
    /* none */
    x.shape.gpu_layers = 0;
    rig_predict(&x);
    assert_int_equal(x.r.use[2].n_layers, 33);
    assert_int_equal(model_bytes(&x, 0) + model_bytes(&x, 1), 0);

    /* a share of zero gets nothing; shares beyond the devices are not read; all zero is as none */
    x.shape.gpu_layers = UINT32_MAX;
    rig_split(&x, 0, 3);
    rig_predict(&x);
    assert_int_equal(x.r.use[0].n_layers, 0);
    assert_int_equal(x.r.use[1].n_layers, 33);
    assert_non_null(note_of(&x.r, "split-zero"));
    x.shape.split[0] = x.shape.split[1] = 0;
    x.shape.split[2] = 5;
    x.shape.n_split = 3;
    x.devices[0].free_bytes = 10 * GIB;
    x.devices[1].free_bytes = 30 * GIB;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].n_layers, 9); /* k/33 < 0.25 */
    assert_non_null(note_of(&x.r, "split-free"));

    /* one device of several */
    x.shape.split_mode = FIT_SPLIT_NONE;
    x.shape.main_gpu = 1;
    rig_predict(&x);
    assert_int_equal(x.r.use[1].n_layers, 33);
    x.shape.main_gpu = 2;
    rig_predict(&x);
    assert_int_equal(note_of(&x.r, "main-gpu")->severity, FIT_REFUSED);
    assert_false(x.r.fits);
    rig_done(&x);
    m = model_free(m);
}

static void overrides(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    const uint64_t up = 4096ull * 14336 / 256 * 144;
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 8192;
    x.devices[1].buffer = "RPC0[127.0.0.1:2]";
    x.shape.overrides[0] = (struct fit_override){"blk\\.(0|1)\\.ffn_up", "CPU"};
    x.shape.overrides[1] = (struct fit_override){"blk\\.[0-3]\\.ffn_up", "RPC0[127.0.0.1:2]"}; /* the first one that matches decides */
    x.shape.overrides[2] = (struct fit_override){"token_embd", "RPC0"};
    x.shape.n_overrides = 3;
    rig_predict(&x);
    assert_int_equal(model_bytes(&x, 0), 2361917440 - 4 * up + 295501824);
    assert_int_equal(model_bytes(&x, 1), 2515001344 + 2 * up);
    assert_int_equal(model_bytes(&x, 2), 2 * up);
    assert_null(note_of(&x.r, "override-unmatched"));
    assert_false(x.r.pipeline);

    x.shape.overrides[1] = (struct fit_override){"ngram_embeddings", "RPC1"};
    rig_predict(&x);
    assert_non_null(note_of(&x.r, "override-unmatched"));
    assert_int_equal(note_of(&x.r, "override-buffer")->severity, FIT_REFUSED); /* RPC1 is the device, not its buffer */

    x.shape.overrides[1] = (struct fit_override){"(", "CPU"};
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    rig_done(&x);
    m = model_free(m);
}

/* A cache of experts: whole ones, by shares among the devices whose layers keep theirs on the host. */
static void expert_cache(void **state)
{
    (void)state;
    struct made f = made_sized("qwen3moe", 4, 256, 4, 2, 64, 128, 512, 4096);
    made_key(&f, "expert_count", 16);
    made_key(&f, "expert_used_count", 2);
    made_key(&f, "expert_feed_forward_length", 128);
    made_ends(&f, 256, 512);
    for (uint32_t il = 0; il < 4; il++) {
        made_layer(&f, il, "ffn_gate_exps.weight", Q8_0, 256, 128, 16);
        made_layer(&f, il, "ffn_up_exps.weight", Q8_0, 256, 128, 16);
        made_layer(&f, il, "ffn_down_exps.weight", Q8_0, 128, 256, 16);
    }
    struct model *m = made_load(&f);
    static const struct {
        uint64_t mib;
        uint32_t on_cpu;
        double a, b;
        uint64_t first, second;
    } cases[] = {{2, UINT32_MAX, 1, 1, 10, 10}, {4, UINT32_MAX, 1, 1, 20, 17}, {4, UINT32_MAX, 2, 3, 16, 24}, {4, UINT32_MAX, 3, 2, 24, 16}, {4, 3, 2, 3, 16, 17}, {3, UINT32_MAX, 3, 1, 30, 0}};
    struct rig x;

    rig_init(&x, m, 2);
    x.shape.context = 2048;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        rig_split(&x, cases[i].a, cases[i].b);
        x.shape.cpu_moe = cases[i].on_cpu;
        x.shape.moe_cache_bytes = 0;
        rig_predict(&x);
        const uint64_t before[3] = {model_bytes(&x, 0), model_bytes(&x, 1), model_bytes(&x, 2)};
        x.shape.moe_cache_bytes = cases[i].mib * MIB;
        rig_predict(&x);
        assert_int_equal(model_bytes(&x, 0) - before[0], cases[i].first * 104448);
        assert_int_equal(model_bytes(&x, 1) - before[1], cases[i].second * 104448);
        assert_int_equal(model_bytes(&x, 2) - before[2], 64 * (cases[i].on_cpu == 3 ? 3 : 4));
    }
    rig_done(&x);
    m = model_free(m);
}

/* CUDA rounds tensors to 128 bytes and reads whole rows of 512 elements of quantized ones. */
static void cuda(void **state)
{
    (void)state;
    struct made f = made_sized("llama", 1, 96, 3, 3, 32, 96, 64, 4096);
    made_ends(&f, 96, 64);
    made_layer(&f, 0, "attn_norm.weight", F32, 96, 0, 0);
    made_layer(&f, 0, "attn_q.weight", Q8_0, 96, 96, 0);
    made_layer(&f, 0, "attn_k.weight", 35u /* tq2_0 */, 256, 96, 0);
    struct model *m = made_load(&f);
    struct rig x;

    rig_init(&x, m, 1);
    x.devices[0].backend = FIT_CUDA;
    x.shape.context = 256;
    x.shape.k_type = x.shape.v_type = gguf_type_get(Q8_0);
    rig_predict(&x);
    const uint64_t q = 96ull * 3 * 34, pad = (512 - 96) / 32 * 34;
    assert_int_equal(term(&x, 0, FIT_WEIGHTS), 384 + (q + pad + 127) / 128 * 128 + 384 + 96ull * 64 * 2);
    assert_int_equal(term(&x, 0, FIT_KV), 2 * ((256ull * 3 * 34 + pad + 127) / 128 * 128));
    assert_int_equal(model_bytes(&x, 1), 96ull * 64 * 2 + 96ull * 66); /* no kernel for tq2_0: on the CPU */
    assert_non_null(note_of(&x.r, "kv-scratch"));
    rig_done(&x);
    m = model_free(m);
}

static void host_memory(void **state)
{
    (void)state;
    struct made f = made_sized("llama", 1, 256, 4, 4, 64, 256, 64, 4096);
    made_ends(&f, 256, 64);
    made_layer(&f, 0, "attn_q.weight", Q4_0, 256, 256, 0);
    made_layer(&f, 0, "attn_k.weight", Q8_0, 256, 256, 0);
    struct model *m = made_load(&f);
    const uint64_t q4 = 256ull * 8 * 18, all = q4 + 256ull * 8 * 34 + 2 * 256ull * 64 * 2 + 1024;
    struct rig x;

    rig_init(&x, m, 0);
    x.shape.context = 256;
    x.shape.no_mmap = false;
    x.host.repack = true;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].mapped_bytes, all - q4);
    assert_int_equal(term(&x, 0, FIT_WEIGHTS), q4);
    assert_int_equal(x.r.use[0].repack_bytes, q4);
    assert_non_null(note_of(&x.r, "repack-host"));
    x.shape.no_repack = true;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].mapped_bytes, all);
    assert_int_equal(term(&x, 0, FIT_WEIGHTS), 0);
    assert_null(note_of(&x.r, "repack-host"));
    x.shape.no_mmap = true;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_WEIGHTS), all);

    /* a GPU's pinned buffers come before repacking; an integrated one does not map and shares the host's memory */
    x.shape.no_mmap = x.shape.no_repack = false;
    x.devices[0] = (struct fit_device){.name = "ROCm0", .backend = FIT_HIP, .total_bytes = GIB, .free_bytes = GIB, .shared = true};
    x.in.n_devices = 1;
    x.shape.gpu_layers = 0;
    rig_predict(&x);
    assert_int_equal(term(&x, 1, FIT_WEIGHTS), all);
    assert_int_equal(x.r.use[1].repack_bytes, 0);
    x.shape.gpu_layers = UINT32_MAX;
    rig_predict(&x);
    assert_int_equal(x.r.use[1].left, (int64_t)(128 * GIB - x.r.use[0].used - x.r.use[1].used));
    rig_done(&x);
    m = model_free(m);

    /* a head that is the embedding becomes a tensor of its own when it is repacked */
    f = made_sized("llama", 1, 256, 4, 4, 64, 256, 64, 4096);
    made_tensor(&f, "token_embd.weight", Q4_0, 256, 64, 0);
    made_tensor(&f, "output_norm.weight", F32, 256, 0, 0);
    m = made_load(&f);
    rig_init(&x, m, 0);
    x.shape.context = 256;
    rig_predict(&x);
    assert_int_equal(model_bytes(&x, 0), 64ull * 8 * 18 + 1024);
    x.host.repack = true;
    rig_predict(&x);
    assert_int_equal(model_bytes(&x, 0), 2 * 64ull * 8 * 18 + 1024);
    assert_int_equal(x.r.use[0].repack_bytes, 64ull * 8 * 18);
    rig_done(&x);
    m = model_free(m);
}

static void judged(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 8192;
    rig_predict(&x);
    const uint64_t used = x.r.use[1].used;
    assert_int_equal(x.r.use[1].left, (int64_t)(64 * GIB - used));
    x.devices[1].free_bytes = used + GIB;
    x.devices[1].floor_bytes = GIB;
    rig_predict(&x);
    assert_true(x.r.fits);
    assert_int_equal(x.r.binds, 1);
    assert_int_equal(x.r.binds_term, FIT_WEIGHTS);
    assert_int_equal(x.r.gap_bytes, (uint64_t)(x.r.use[0].left - x.r.use[1].left));
    x.devices[1].floor_bytes = GIB + 1;
    rig_predict(&x);
    assert_false(x.r.fits);
    rig_done(&x);
    m = model_free(m);
}

static void hostile(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, NAN, 1);
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    rig_split(&x, -1, 1);
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    rig_split(&x, INFINITY, 1);
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.shape.n_split = FIT_DEVICES_MAX + 1;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    rig_split(&x, 1, 1);
    x.shape.slots = 0;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.shape.slots = FLEET_SLOTS_MAX + 1;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.shape.slots = 1;
    x.shape.context = UINT32_MAX;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.shape.context = 4096;
    x.shape.k_type = NULL;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.shape.k_type = gguf_type_get(F16);
    x.shape.projector_device = 2;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.shape.projector_device = -1;
    x.shape.n_draft_devices = 1;
    x.shape.draft_devices[0] = 2;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.shape.n_draft_devices = 0;
    x.in.n_devices = FIT_DEVICES_MAX + 1;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.in.n_devices = 2;
    x.devices[1].name = NULL;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);
    x.devices[1].name = "RPC1";
    x.in.target = NULL;
    assert_int_equal(fit_predict(&x.in, x.a, &x.r, &x.err), -EINVAL);

    /* the largest that can be asked is a figure that fits nowhere, not one that wraps */
    x.in.target = m;
    x.shape.context = INT32_MAX;
    x.shape.slots = 1;
    x.shape.batch = x.shape.ubatch = UINT32_MAX;
    x.shape.k_type = x.shape.v_type = gguf_type_get(F32);
    x.shape.checkpoints = UINT32_MAX;
    x.shape.draft_max = UINT32_MAX;
    x.shape.prompt_cache_bytes = UINT64_MAX;
    x.shape.flash = FLEET_OFF;
    rig_predict(&x);
    assert_false(x.r.fits);
    assert_true(x.r.use[0].used <= FIT_BYTES_MAX);
    assert_true(x.r.use[0].left < 0);
    /* devices without memory */
    x.devices[0].total_bytes = x.devices[0].free_bytes = 0;
    x.devices[1].free_bytes = UINT64_MAX;
    x.shape.n_split = 0;
    x.in.host = NULL;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].n_layers, 0);
    rig_done(&x);
    m = model_free(m);
}

/* Memory that ends anywhere is an error, never a half result. */
static void out_of_memory(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    struct rig x;
    int failed = 0;

    rig_init(&x, m, 2);
    x.shape.context = 8192;
    for (size_t max = 64; max < 64 * KIB; max += 512) {
        struct arena *a = arena_new(max);
        assert_non_null(a);
        int r = fit_predict(&x.in, a, &x.r, &x.err);
        assert_true(r == 0 || r == -ENOMEM);
        failed += r < 0;
        a = arena_free(a);
    }
    assert_true(failed > 10);
    rig_done(&x);
    m = model_free(m);
}

/* The same from a prepared object, without texts. */
static void prepared(void **state)
{
    (void)state;
    struct model *m = made_gemma3_12b();
    struct fit_prepared *p = NULL;
    struct fit_result r;
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 2, 1);
    x.shape.context = 65536;
    x.shape.slots = 3;
    rig_predict(&x);
    assert_int_equal(fit_prepare(&x.in, x.a, &p, &x.err), 0);
    assert_int_equal(fit_predict_prepared(p, &x.shape, NULL, &r, &x.err), 0);
    assert_int_equal(r.n_notes, x.r.n_notes);
    for (size_t i = 0; i < r.n_notes; i++) {
        assert_string_equal(r.notes[i].rule, x.r.notes[i].rule);
        assert_string_equal(r.notes[i].text, "");
        assert_true(strlen(x.r.notes[i].text) > 20);
        r.notes[i].text = x.r.notes[i].text;
    }
    assert_memory_equal(&r, &x.r, sizeof(r));
    rig_done(&x);
    m = model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_8b), cmocka_unit_test(gemma3_12b), cmocka_unit_test(qwen3_30b), cmocka_unit_test(hybrids),       cmocka_unit_test(gpt_oss),  cmocka_unit_test(layers_and_shares), cmocka_unit_test(overrides),
        cmocka_unit_test(expert_cache), cmocka_unit_test(cuda),     cmocka_unit_test(host_memory), cmocka_unit_test(judged),   cmocka_unit_test(hostile),       cmocka_unit_test(out_of_memory), cmocka_unit_test(prepared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
