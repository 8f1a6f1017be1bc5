/* SPDX-License-Identifier: MIT
 *
 * Rules of a firewall: whatever is read answers every question, within its steps, with a line of the text when something stops.
 */
#include <firewall/firewall.h>

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};
    struct arena *a = arena_new(64 << 20);
    struct firewall f;
    struct err err = {0};
    unsigned lines = 1;
    require(a != NULL);
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    int r = firewall_parse(text, a, &f, &err);
    if (r < 0)
        require(err.text[0] != 0);
    for (unsigned i = 0; r == 0 && i < 4; i++) {
        const struct firewall_probe p = {.port = (uint16_t)(i < 2 ? 7770 : 22), .loopback = i % 2};
        unsigned line = 0, may = firewall_ask(&f, &p, &line);
        require(may >= 1 && may <= 3 && line <= lines);
        require((may & FIREWALL_STOPS) || line == 0);
    }
    arena_free(a);
    return 0;
}
