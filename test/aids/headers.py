#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes hollow GGUF files (a header and a hole) whose layers are of several kinds, for tests of what berth inspect says of them.

headers.py DIR    writes drafter.gguf, window.gguf, hybrid.gguf, unknown.gguf
"""
import struct
import sys

WIDTH = 512


def string(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def pair(key, value):
    if isinstance(value, int):
        return string(key) + struct.pack("<II", 4, value)
    if isinstance(value, str):
        return string(key) + struct.pack("<I", 8) + string(value)
    if isinstance(value, float):
        return string(key) + struct.pack("<If", 6, value)
    if isinstance(value[0], str):
        return string(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    return string(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def attention(i):
    return [(f"blk.{i}.attn_{n}.weight", d) for n, d in (("norm", [WIDTH]), ("q", [WIDTH, 512]), ("k", [WIDTH, 128]), ("v", [WIDTH, 128]), ("output", [512, WIDTH]))]


def recurrent(i):
    return [(f"blk.{i}.{n}.weight", d) for n, d in (("attn_norm", [WIDTH]), ("attn_qkv", [WIDTH, 1024]), ("attn_gate", [WIDTH, 512]), ("ssm_conv1d", [4, 1024]), ("ssm_out", [512, WIDTH]))]


def feed_forward(i):
    return [(f"blk.{i}.ffn_{n}.weight", d) for n, d in (("norm", [WIDTH]), ("gate", [WIDTH, 1024]), ("up", [WIDTH, 1024]), ("down", [1024, WIDTH]))]


def write(path, arch, name, keys, tensors):
    common = {"context_length": 262144, "embedding_length": WIDTH, "feed_forward_length": 1024, "attention.head_count": 8, "attention.head_count_kv": 2, "attention.key_length": 64,
              "attention.value_length": 64, "attention.layer_norm_rms_epsilon": 1e-6}
    kv = {"general.architecture": arch, "general.name": name, **{f"{arch}.{k}": v for k, v in {**common, **keys}.items()}, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kv)) + b"".join(pair(k, v) for k, v in kv.items())
    at = 0
    for tensor, dims in tensors:
        head += string(tensor) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 1, at)
        size = 2
        for d in dims:
            size *= d
        at += (size + 31) // 32 * 32
    head += bytes(-len(head) % 32)
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + at)


def main(folder):
    ends = [("token_embd.weight", [WIDTH, 2]), ("output_norm.weight", [WIDTH])]
    write(folder + "/drafter.gguf", "dflash", "A drafter", {"block_count": 5, "attention.sliding_window": 2048, "attention.sliding_window_pattern": [1] * 5, "block_size": 8, "target_layers": [1, 17, 33]},
          [("fc.weight", [WIDTH * 3, WIDTH]), ("output_norm.weight", [WIDTH])] + [t for i in range(5) for t in attention(i) + feed_forward(i)])
    write(folder + "/window.gguf", "gemma3", "A window", {"block_count": 12, "attention.sliding_window": 1024}, ends + [t for i in range(12) for t in attention(i) + feed_forward(i)])
    write(folder + "/hybrid.gguf", "qwen35", "A hybrid", {"block_count": 9, "nextn_predict_layers": 1, "full_attention_interval": 4, "ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 64, "ssm.group_count": 4,
                                                           "ssm.time_step_rank": 8},
          ends + [t for i in range(9) for t in (attention(i) if i % 4 == 3 or i == 8 else recurrent(i)) + feed_forward(i)] + [("blk.8.nextn.eh_proj.weight", [2 * WIDTH, WIDTH])])
    write(folder + "/unknown.gguf", "newarch", "A stranger", {"block_count": 3, "attention.sliding_window": 128},
          ends + attention(0) + feed_forward(0) + attention(1) + [("blk.1.ffn_up_exps.weight", [WIDTH, 64, 4])] + recurrent(2))


main(sys.argv[1])
