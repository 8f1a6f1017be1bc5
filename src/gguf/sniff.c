/* SPDX-License-Identifier: MIT
 *
 * Says what a file is by its first bytes. Most files that are no model come from a download that went wrong: a web page saved under the model's name, a pointer of Git LFS, the hub's one line of refusal, space that was reserved
 * and never filled. Each is named, with what to do.
 */
#include "reader_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define LOOK_BYTES 1024 /* enough for the first tag of a page and for a whole LFS pointer */

/* Kinds of file that are known by a few bytes at their beginning. */
static const struct {
    const char *magic;
    size_t len;
    const char *text;
} others[] = {
    {"FUGG", 4, "a big-endian GGUF file (its magic is reversed); fetch a little-endian one"},
    {"lmgg", 4, "a GGML file from before GGUF, which engines have stopped reading: convert the model again or fetch a newer file"},
    {"fmgg", 4, "a GGML file from before GGUF, which engines have stopped reading: convert the model again or fetch a newer file"},
    {"tjgg", 4, "a GGML file from before GGUF, which engines have stopped reading: convert the model again or fetch a newer file"},
    {"algg", 4, "a GGML adapter from before GGUF, which engines have stopped reading: convert it again or fetch a newer file"},
    {"PK\003\004", 4, "a zip archive, as PyTorch's .bin and .pt files are: convert the model to GGUF or safetensors, or unpack it"},
    {"\x1f\x8b", 2, "compressed by gzip: unpack it first"},
    {"\x28\xb5\x2f\xfd", 4, "compressed by zstd: unpack it first"},
    {"\xfd" "7zXZ", 5, "compressed by xz: unpack it first"},
    {"BZh", 3, "compressed by bzip2: unpack it first"},
    {"7z\xbc\xaf\x27\x1c", 6, "a 7-Zip archive: unpack it first"},
    {"\x80\x02", 2, "a Python pickle, as old PyTorch files are: convert the model to GGUF or safetensors"},
    {"\x80\x04", 2, "a Python pickle, as old PyTorch files are: convert the model to GGUF or safetensors"},
    {"\x89HDF", 4, "an HDF5 file, as Keras writes: convert the model to GGUF or safetensors"},
    {"\x7f" "ELF", 4, "a program or library, no model"},
    {"%PDF", 4, "a PDF document, no model"},
};

static int is(struct err *err, const char *what)
{
    return err_set(err, -EMEDIUMTYPE, "%s", what);
}

static struct str without_space(struct str s)
{
    if (str_starts(s, STR("\xef\xbb\xbf")))
        s = (struct str){s.ptr + 3, s.len - 3};
    return str_trim(s);
}

/* "size 4683073536" of an LFS pointer; 0 when there is none. */
static uint64_t lfs_size(struct str text)
{
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        uint64_t n;
        if (str_starts(line, STR("size ")) && str_to_u64(str_trim((struct str){line.ptr + 5, line.len - 5}), &n) == 0)
            return n;
    }
    return 0;
}

static bool is_text(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c < 32 && c != '\n' && c != '\r' && c != '\t')
            return false;
    }
    return s.len > 0;
}

static bool is_zeros(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i])
            return false;
    return true;
}

static int name_text(struct str head, bool whole, struct err *err)
{
    struct str text = without_space(head);
    if (text.len && text.ptr[0] == '<')
        return is(err, "a web page, no model: it was downloaded from an address that shows the file (such as .../blob/...) or asks for a login; fetch .../resolve/... with the right token");
    if (str_starts(text, STR("version https://git-lfs"))) {
        uint64_t n = lfs_size(text);
        if (n)
            return err_set(err, -EMEDIUMTYPE, "a pointer of Git LFS, which stands for a file of %" PRIu64 " bytes: run 'git lfs pull', or download the file itself", n);
        return is(err, "a pointer of Git LFS, not the file itself: run 'git lfs pull', or download the file");
    }
    if (whole && is_text(head)) {
        struct reader_quote q;
        struct str line = text;
        return err_set(err, -EMEDIUMTYPE, "text, no model: '%s'; if it is what a server answered instead of the file, fetch it again", reader_quote(str_split(&line, '\n'), &q));
    }
    return 0;
}

static int name_other(struct str head, bool whole, struct err *err)
{
    for (size_t i = 0; i < BASE_COUNT(others); i++)
        if (str_starts(head, (struct str){others[i].magic, others[i].len}))
            return is(err, others[i].text);
    int r = name_text(head, whole, err);
    if (r < 0)
        return r;
    if (is_zeros(head))
        return is(err, "zeros at its beginning: space was reserved for a download that did not come to an end; fetch it again");
    if (head.len > 262 && memcmp(head.ptr + 257, "ustar", 5) == 0)
        return is(err, "a tar archive: unpack it first");
    char hex[4][4];
    for (size_t i = 0; i < 4; i++)
        (void)snprintf(hex[i], sizeof(hex[i]), "%02x", i < head.len ? (unsigned char)head.ptr[i] : 0u);
    return err_set(err, -EMEDIUMTYPE, "no model file that is known here: it begins with the bytes %s %s %s %s instead of 'GGUF' or the header of safetensors", hex[0], hex[1], hex[2], hex[3]);
}

int gguf_sniff(const struct gguf_source *src, enum gguf_file *ret, struct err *err)
{
    char bytes[LOOK_BYTES];
    size_t n = src->size < sizeof(bytes) ? (size_t)src->size : sizeof(bytes);
    if (n == 0)
        return is(err, "an empty file: fetch it again");
    int r = src->read(src->ctx, 0, bytes, n, err);
    if (r < 0)
        return r;
    struct str head = {bytes, n};
    if (str_starts(head, STR("GGUF"))) {
        *ret = GGUF_FILE_GGUF;
        return 0;
    }
    /* the length before the JSON of safetensors has zero bytes, which no text has */
    struct str text = without_space(head);
    if (text.len && (text.ptr[0] == '{' || text.ptr[0] == '[') && is_text((struct str){bytes, n < 8 ? n : 8})) {
        *ret = GGUF_FILE_JSON;
        return 0;
    }
    if (n >= 9 && bytes[8] == '{') {
        *ret = GGUF_FILE_SAFETENSORS;
        return 0;
    }
    if (n < 4 && memcmp("GGUF", bytes, n) == 0)
        return err_set(err, -ENODATA, "the file ends at byte %zu, inside its magic number: it is cut short; fetch it again", n);
    return name_other(head, n == src->size, err);
}
