/* SPDX-License-Identifier: MIT
 *
 * Writes a GGUF header as large as the largest real one: the vocabulary of a model with 262,144 tokens and 514,906 merges, lengths drawn from what such vocabularies have (tokens of about 7 bytes, merges of about 11), scores and
 * token types, no tensors. Always the same bytes.
 *
 *   bigheader FILE
 */
#include <fcntl.h>
#include <gguf/gguf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS 262144
#define MERGES 514906
#define TEMPLATE_BYTES 29800  /* brings the whole to the 15,776,467 bytes of the real one, within the padding */
#define HEADER_MOST (32u << 20)

/* How many of 100 strings are so long; the first entry is for one byte. */
static const uint8_t token_lengths[] = {1, 3, 7, 11, 13, 13, 13, 11, 9, 7, 5, 3, 2, 1, 1};
static const uint8_t merge_lengths[] = {0, 0, 1, 1, 2, 4, 6, 8, 11, 13, 13, 12, 9, 7, 5, 3, 2, 1, 1, 1};

static uint64_t seed = 42;

static unsigned draw(unsigned below)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (unsigned)((seed >> 33) % below);
}

static size_t length(const uint8_t *share, size_t n)
{
    unsigned left = draw(100);
    for (size_t i = 0; i < n; i++) {
        if (left < share[i])
            return i + 1;
        left -= share[i];
    }
    return n;
}

/* n strings of letters, one byte of each merge a space. */
static struct str *strings(size_t n, const uint8_t *share, size_t n_share)
{
    struct str *s = calloc(n, sizeof(*s));
    char *text = malloc(n * n_share);
    if (!s || !text)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        s[i] = (struct str){text, length(share, n_share)};
        for (size_t k = 0; k < s[i].len; k++)
            *text++ = (char)('a' + draw(26));
        if (share == merge_lengths)
            text[-(ptrdiff_t)(s[i].len / 2) - 1] = ' ';
    }
    return s;
}

int main(int argc, char **argv)
{
    struct err err = {.text = "needs one word: the file to write"};
    struct buf out = BUF_INIT(HEADER_MOST);
    uint64_t data_bytes = 0;
    float *scores = calloc(TOKENS, sizeof(*scores));
    int32_t *types = calloc(TOKENS, sizeof(*types));
    char *template = malloc(TEMPLATE_BYTES);
    struct gguf_writer *w = gguf_writer_new();
    if (argc != 2 || !scores || !types || !template || !w)
        goto failed;
    for (size_t i = 0; i < TOKENS; i++) {
        scores[i] = -(float)i;
        types[i] = 1;
    }
    memset(template, ' ', TEMPLATE_BYTES);
    gguf_put_str(w, "general.architecture", STR("gemma4"));
    gguf_put_str(w, "general.name", STR("a vocabulary"));
    gguf_put_u32(w, "gemma4.block_count", 60);
    gguf_put_u32(w, "gemma4.context_length", 262144);
    gguf_put_u32(w, "gemma4.embedding_length", 5376);
    gguf_put_u32(w, "gemma4.attention.head_count", 32);
    gguf_put_str(w, "tokenizer.ggml.model", STR("gemma4"));
    gguf_put_strs(w, "tokenizer.ggml.tokens", strings(TOKENS, token_lengths, sizeof(token_lengths)), TOKENS);
    gguf_put_f32s(w, "tokenizer.ggml.scores", scores, TOKENS);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", types, TOKENS);
    gguf_put_strs(w, "tokenizer.ggml.merges", strings(MERGES, merge_lengths, sizeof(merge_lengths)), MERGES);
    gguf_put_str(w, "tokenizer.chat_template", (struct str){template, TEMPLATE_BYTES});
    if (gguf_writer_header(w, &out, &data_bytes, &err) < 0)
        goto failed;
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, out.ptr, out.len) != (ssize_t)out.len || close(fd) != 0) {
        perror(argv[1]);
        return 1;
    }
    printf("%zu bytes, %d strings of a vocabulary\n", out.len, TOKENS + MERGES);
    return 0;
failed:
    fprintf(stderr, "bigheader: %s\n", err.text);
    return 1;
}
