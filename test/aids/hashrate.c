/* SPDX-License-Identifier: MIT
 *
 * How fast one core hashes with berth's sha256, as `openssl speed` measures it: bytes for each second of the processor's time, from memory, a MiB at once.
 *
 *   hashrate [SECONDS]
 */
#include <os/os.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    enum { PIECE = 1 << 20 };
    double least = argc > 1 ? strtod(argv[1], NULL) : 1, begun = cpu_seconds(), now;
    uint8_t *piece = malloc(PIECE), digest[OS_SHA256_BYTES];
    struct os_sha256 h;
    if (!piece)
        return 1;
    memset(piece, 'x', PIECE);
    os_sha256_init(&h);
    do {
        os_sha256_update(&h, piece, PIECE);
        now = cpu_seconds();
    } while (now - begun < least);
    printf("%.0f\n", (double)h.bytes / (now - begun));
    os_sha256_final(&h, digest);
    free(piece);
    return 0;
}
