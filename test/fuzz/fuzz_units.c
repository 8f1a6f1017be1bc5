/* SPDX-License-Identifier: MIT
 *
 * Text from people and peers that base reads: numbers with units, misspelt words, outside text made printable. Beyond
 * not crashing: what is accepted is in range, what is shown can be read again, and what is made printable is printable.
 */
#include <base/base.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_numbers(struct str s)
{
    char text[UNITS_TEXT];
    uint64_t n, again;
    if (units_bytes(s, &n) == 0) {
        assert(n <= INT64_MAX);
        assert(units_bytes(str_of(units_show_bytes(n, text)), &again) == 0 || n > INT64_MAX - (UINT64_C(1) << 40));
        if (n < 1024)
            assert(again == n);
    }
    if (units_rate(s, &n) == 0)
        assert(n <= INT64_MAX && str_ends(s, STR("/s")));
    if (str_to_u64(s, &n) == 0) {
        char digits[UNITS_TEXT];
        snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
        assert(str_ends(s, str_of(digits)));
    }
}

/* The first line is the word, the others are the known words. */
static void find_nearest(struct str s)
{
    enum { MOST = 32 };
    char *words[MOST];
    size_t n = 0;
    struct str word = str_split(&s, '\n');
    while (s.ptr && n < MOST) {
        words[n] = str_dup(str_split(&s, '\n'));
        if (!words[n])
            break;
        n++;
    }
    const char *best = str_nearest(word, (const char *const *)words, n);
    bool known = best == NULL;
    for (size_t i = 0; i < n; i++) {
        known = known || best == words[i];
        assert(best || word.len == 0 || word.len > 64 || !str_eq_c(word, words[i])); /* an equal word is always found */
    }
    assert(known);
    while (n)
        free(words[--n]);
}

static void make_printable(struct str s)
{
    for (size_t max = 0; max < 40; max += 13) {
        struct buf b = BUF_INIT(1 << 20);
        buf_add_printable(&b, s, max);
        assert(buf_status(&b) == 0);
        assert(b.len <= max * 4 + 3);
        assert(str_is_utf8(buf_str(&b)));
        for (size_t i = 0; i < b.len; i++)
            assert((unsigned char)b.ptr[i] >= 0x20 && b.ptr[i] != 0x7F);
        buf_release(&b);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str s = {(const char *)data, size};
    read_numbers(s);
    find_nearest(s);
    make_printable(s);
    return 0;
}
