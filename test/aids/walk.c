/* SPDX-License-Identifier: MIT
 *
 * The floor for a reader of GGUF headers, for benchmarks: maps the file and steps over every key, value, string and tensor info, comparing each length with what is left, and keeps nothing.
 *
 *   walk FILE    prints what it passed
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t *at, *end;
static uint64_t n_strings;

static uint64_t take(size_t bytes)
{
    uint64_t v = 0;
    if (bytes > (size_t)(end - at))
        exit(1);
    memcpy(&v, at, bytes);
    at += bytes;
    return v;
}

static void skip(uint64_t n)
{
    if (n > (uint64_t)(end - at))
        exit(1);
    at += n;
}

static void string(void)
{
    skip(take(8));
    n_strings++;
}

static void value(uint64_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) {
        string();
    } else if (type == 9) {
        uint64_t elem = take(4), n = take(8);
        if (elem == 8)
            for (uint64_t i = 0; i < n; i++)
                string();
        else if (elem < sizeof(bytes) && bytes[elem] && n < UINT64_C(1) << 32)
            skip(n * bytes[elem]);
        else
            exit(1);
    } else if (type < sizeof(bytes)) {
        skip(bytes[type]);
    } else {
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct stat st;
    int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &st) < 0)
        return 1;
    const uint8_t *start = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (start == MAP_FAILED)
        return 1;
    at = start;
    end = start + st.st_size;
    (void)take(8);
    uint64_t n_tensors = take(8), n_kv = take(8);
    for (uint64_t i = 0; i < n_kv; i++) {
        string();
        value(take(4));
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        string();
        skip(take(4) * 8 + 12);
    }
    printf("%" PRIu64 " keys, %" PRIu64 " tensors, %" PRIu64 " strings, %td bytes\n", n_kv, n_tensors, n_strings, at - start);
    return 0;
}
