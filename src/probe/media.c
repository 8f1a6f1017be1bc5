/* SPDX-License-Identifier: MIT
 *
 * A picture and a sound, made here so that nothing must be shipped or fetched: a PNG of 64 by 64 red pixels, whose data is stored and not compressed, and a WAV of one second of 440 Hz (16 kHz, mono, 16 bits). Both go into a request as
 * base64.
 */
#include "probe_int.h"

#define SIDE 64u
#define ROW (1 + 3 * SIDE)        /* a filter byte and the pixels */
#define PIXELS ((size_t)SIDE * ROW)       /* less than what one stored block holds, 65535 */
#define RATE 16000u
#define LOUDNESS 8000.0
/* Of the angle from one sample to the next, 2 pi 440 / 16000: twice its cosine, and its sine. Each sample follows from the two before it. */
#define TWICE_COS 1.9702186523095477
#define SIN 0.17192910027940955

_Static_assert(PIXELS <= 65535, "one stored block holds the picture");

/* ---- bytes --------------------------------------------------------------------------------------------------- */

static void add_base64(struct buf *out, struct str s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < s.len; i += 3) {
        size_t n = s.len - i < 3 ? s.len - i : 3;
        uint32_t v = 0;
        for (size_t k = 0; k < 3; k++)
            v = v << 8 | (k < n ? (unsigned char)s.ptr[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            buf_add_char(out, k <= n ? digits[v >> (18 - 6 * k) & 63] : '=');
    }
}

static void add_be32(struct buf *out, uint32_t v)
{
    for (unsigned shift = 32; shift > 0; shift -= 8)
        buf_add_char(out, (char)(v >> (shift - 8) & 255));
}

static void add_le(struct buf *out, uint32_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        buf_add_char(out, (char)(v >> (8 * i) & 255));
}

/* ---- PNG ----------------------------------------------------------------------------------------------------- */

static uint32_t crc32_of(struct str s)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < s.len; i++) {
        crc ^= (unsigned char)s.ptr[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static uint32_t adler32_of(struct str s)
{
    uint32_t a = 1, b = 0;
    for (size_t i = 0; i < s.len; i++) {
        a = (a + (unsigned char)s.ptr[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

/* Length, then type and data, then the checksum of these two. */
static void add_chunk(struct buf *png, const char *type, struct str data)
{
    add_be32(png, (uint32_t)data.len);
    size_t from = png->len;
    buf_add_c(png, type);
    buf_add_str(png, data);
    if (buf_status(png) == 0)
        add_be32(png, crc32_of((struct str){png->ptr + from, png->len - from}));
}

void probe_add_picture(struct buf *out)
{
    base_autobuf struct buf png = BUF_INIT(PIXELS + 256), pixels = BUF_INIT(PIXELS), head = BUF_INIT(16), data = BUF_INIT(PIXELS + 16);
    for (unsigned i = 0; i < PIXELS; i++)
        buf_add_char(&pixels, i % ROW != 0 && i % ROW % 3 == 1 ? (char)255 : 0);
    add_be32(&head, SIDE);
    add_be32(&head, SIDE);
    buf_add(&head, "\x08\x02\0\0\0", 5); /* 8 bits, RGB */
    buf_add(&data, "\x78\x01\x01", 3);      /* zlib; the last block, stored */
    add_le(&data, PIXELS, 2);
    add_le(&data, ~PIXELS & 65535, 2);
    buf_add_str(&data, buf_str(&pixels));
    add_be32(&data, adler32_of(buf_str(&pixels)));
    buf_add(&png, "\x89PNG\r\n\x1a\n", 8);
    add_chunk(&png, "IHDR", buf_str(&head));
    add_chunk(&png, "IDAT", buf_str(&data));
    add_chunk(&png, "IEND", STR(""));
    int r = buf_status(&pixels) < 0 ? buf_status(&pixels) : buf_status(&data) < 0 ? buf_status(&data) : buf_status(&png);
    if (r < 0)
        buf_fail(out, r);
    else
        add_base64(out, buf_str(&png));
}

/* ---- WAV ----------------------------------------------------------------------------------------------------- */

void probe_add_tone(struct buf *out)
{
    double before = -LOUDNESS * SIN, now = 0;
    base_autobuf struct buf wav = BUF_INIT(2 * RATE + 64);
    buf_add_c(&wav, "RIFF");
    add_le(&wav, 36 + 2 * RATE, 4);
    buf_add_c(&wav, "WAVEfmt ");
    add_le(&wav, 16, 4);
    add_le(&wav, 1, 2); /* PCM */
    add_le(&wav, 1, 2); /* channel */
    add_le(&wav, RATE, 4);
    add_le(&wav, 2 * RATE, 4);
    add_le(&wav, 2, 2);
    add_le(&wav, 16, 2);
    buf_add_c(&wav, "data");
    add_le(&wav, 2 * RATE, 4);
    for (unsigned i = 0; i < RATE; i++) {
        double next = TWICE_COS * now - before;
        add_le(&wav, (uint32_t)(int32_t)now & 65535, 2);
        before = now;
        now = next;
    }
    if (buf_status(&wav) < 0)
        buf_fail(out, buf_status(&wav));
    else
        add_base64(out, buf_str(&wav));
}
