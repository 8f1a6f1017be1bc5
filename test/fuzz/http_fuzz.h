/* SPDX-License-Identifier: MIT
 *
 * What the two HTTP fuzzers share. The input is fed in one piece and again in pieces whose sizes follow from its bytes; both runs must
 * come to the same messages, the same verdict and the same rest. A request head that was accepted is written anew and parsed: nothing that
 * one parser of ours accepts may be refused or read differently by the next.
 */
#pragma once

#include <assert.h>
#include <errno.h>

struct fuzz_run {
    uint64_t sum; /* of all that the callbacks were told */
    struct buf again;
};

static void fuzz_add(struct fuzz_run *r, struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        r->sum = (r->sum ^ (unsigned char)s.ptr[i]) * UINT64_C(1099511628211);
}

static void fuzz_add_u64(struct fuzz_run *r, uint64_t n)
{
    fuzz_add(r, (struct str){(const char *)&n, sizeof n});
}

static int fuzz_head(void *ctx, const struct http_head *h)
{
    struct fuzz_run *r = ctx;
    fuzz_add(r, h->method);
    fuzz_add(r, h->target);
    fuzz_add(r, http_target_path(h->target));
    fuzz_add(r, h->reason);
    fuzz_add_u64(r, h->status);
    fuzz_add_u64(r, (uint64_t)h->content_length);
    fuzz_add_u64(r, (uint64_t)h->minor << 8 | (uint64_t)h->chunked << 3 | (uint64_t)h->keep_alive << 2 | (uint64_t)h->expect_continue << 1 | h->upgrade);
    assert(!(h->chunked && h->content_length >= 0));
    buf_clear(&r->again);
    int rc = FUZZ_KIND == HTTP_REQUEST ? http_write_request(&r->again, h->method, h->target) : http_write_status(&r->again, h->status);
    assert(rc == 0);
    for (size_t i = 0; i < h->n_fields; i++) {
        fuzz_add(r, h->fields[i].name);
        fuzz_add(r, h->fields[i].value);
        fuzz_add_u64(r, http_field_hop(h, h->fields[i].name));
        rc = http_write_field(&r->again, h->fields[i].name, h->fields[i].value);
        assert(rc == 0);
    }
    http_write_head_end(&r->again);
    if (h->minor == 0) /* what we write is 1.1, which asks for more than 1.0 did */
        buf_clear(&r->again);
    return 0;
}

static int fuzz_body(void *ctx, struct str data)
{
    assert(data.len > 0);
    fuzz_add(ctx, data);
    return 0;
}

static int fuzz_end(void *ctx)
{
    fuzz_add_u64(ctx, 0xe0d);
    return 0;
}

static const struct http_parser_ops fuzz_ops = {fuzz_head, fuzz_body, fuzz_end};

/* Head only: whether what was written anew is accepted. */
static int again_head(void *ctx, const struct http_head *h)
{
    (void)h;
    *(bool *)ctx = true;
    return 0;
}
static int again_body(void *ctx, struct str data)
{
    (void)ctx, (void)data;
    return 0;
}
static int again_end(void *ctx)
{
    (void)ctx;
    return 0;
}

static void fuzz_write_again(struct buf *again)
{
    static const struct http_parser_ops ops = {again_head, again_body, again_end};
    /* a head of almost the largest size may grow by the space after a colon */
    if (!again->len || buf_status(again) < 0 || again->len > HTTP_HEAD_MAX)
        return;
    bool accepted = false;
    struct http_parser *p = http_parser_new(HTTP_REQUEST, &ops, &accepted);
    size_t used;
    if (!p)
        return;
    int r = http_parser_feed(p, buf_str(again), &used, NULL);
    assert(r == 0 && accepted);
    http_parser_free(p);
}

/* Returns the verdict; pieces: whether to cut. */
static int fuzz_feed(struct fuzz_run *r, const uint8_t *data, size_t size, bool pieces)
{
    struct http_parser *p = http_parser_new(FUZZ_KIND, &fuzz_ops, r);
    if (!p)
        return 0;
    int rc = 0;
    for (size_t i = 0; i < size && rc == 0;) {
        size_t n = pieces ? data[i] % 9 + 1u : size - i, used = 0;
        if (n > size - i)
            n = size - i;
        if (FUZZ_KIND == HTTP_RESPONSE && http_parser_idle(p) && size % 3 == 0)
            http_parser_expect_head(p);
        rc = http_parser_feed(p, (struct str){(const char *)data + i, n}, &used, NULL);
        assert(rc < 0 || (used > 0 && used <= n));
        i += used;
    }
    if (rc == 0) {
        fuzz_add_u64(r, http_parser_idle(p));
        rc = http_parser_eof(p);
    }
    http_parser_free(p);
    return rc;
}

static bool refusal(int rc)
{
    return rc == -EBADMSG || rc == -EMSGSIZE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_run whole = {.again = BUF_INIT(4 * HTTP_HEAD_MAX)}, cut = {.again = BUF_INIT(4 * HTTP_HEAD_MAX)};
    int a = fuzz_feed(&whole, data, size, false);
    if (FUZZ_KIND == HTTP_REQUEST)
        fuzz_write_again(&whole.again);
    int b = fuzz_feed(&cut, data, size, true);
    /* of two reasons to refuse the pieces may show the other one first */
    assert(a == b || (refusal(a) && refusal(b)));
    /* after a refusal the pieces may have shown more of a body before it */
    assert(a < 0 || whole.sum == cut.sum);
    buf_release(&whole.again);
    buf_release(&cut.again);
    return 0;
}
