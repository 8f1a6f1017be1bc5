/* SPDX-License-Identifier: MIT
 *
 * Proofs that collectives work on exactly these cards: rows of the ledger, and the output of the tests that make them.
 */
#include "doctor_int.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KIND "collective"

/* ---- the key --------------------------------------------------------------------------------------------------------- */

/* Whether card i is one that the host's declaration means; without one all cards with memory of their own and of the maker that has most are. */
static void chosen(const struct hw *h, const struct fleet_host *host, bool ret[HW_DEVICES_MAX])
{
    unsigned of[HW_INTEL + 1] = {0};
    memset(ret, 0, sizeof *ret * HW_DEVICES_MAX);
    for (size_t i = 0; host && i < host->n_devices; i++) {
        int at = doctor_place(h, &host->devices[i]);
        if (at >= 0)
            ret[at] = true;
    }
    if (host && host->n_devices)
        return;
    for (size_t i = 0; i < h->n_devices; i++)
        of[h->devices[i].vendor] += !h->devices[i].shared && *h->devices[i].driver;
    enum hw_vendor most = of[HW_AMD] >= of[HW_NVIDIA] ? HW_AMD : HW_NVIDIA;
    for (size_t i = 0; i < h->n_devices; i++)
        ret[i] = h->devices[i].vendor == most && !h->devices[i].shared && *h->devices[i].driver && strcmp(h->devices[i].driver, "vfio-pci") != 0;
}

bool doctor_collective_key(const struct hw *h, const struct fleet_host *host, struct buf *out)
{
    bool in[HW_DEVICES_MAX];
    unsigned n = 0;
    chosen(h, host, in);
    for (size_t i = 0; i < h->n_devices; i++) { /* by PCI address */
        char identity[HW_IDENTITY];
        if (in[i])
            buf_addf(out, "%s%s", n++ ? " + " : "", hw_identity(&h->devices[i], identity));
    }
    return n > 1 && buf_status(out) == 0;
}

/* ---- the ledger ---------------------------------------------------------------------------------------------------------- */

struct found {
    uint64_t at_us;
    struct buf *by;
};

static int take(void *ctx, const struct ledger_row *row, struct err *err)
{
    struct found *f = ctx;
    const struct ledger_value *by = ledger_value(row, "by");
    (void)err;
    f->at_us = row->at_us;
    if (f->by && by && by->text)
        buf_add_printable(f->by, str_of(by->text), 60);
    return 1;
}

int doctor_collective_find(struct ledger *l, const char *key, uint64_t *ret_at_us, struct buf *by, struct err *err)
{
    struct found f = {.by = by};
    const struct ledger_query q = {.kind = KIND, .hardware = key, .most = 1};
    int r = ledger_find(l, &q, take, &f, err);
    if (r >= 0)
        *ret_at_us = f.at_us;
    return r < 0 ? r : 0;
}

int doctor_collective_add(struct ledger *l, const char *key, const char *by, double bus_bytes_s, struct err *err)
{
    const struct ledger_value values[] = {{.name = "by", .text = by}, {.name = "bus_bytes_s", .number = bus_bytes_s}};
    const struct ledger_row row = {.at_us = clk_system.real_us(clk_system.ctx), .kind = KIND, .service = "", .build = "", .model = "", .shape = "", .hardware = key, .tag = LEDGER_AFTER_TRAFFIC, .values = values, .n_values = BASE_COUNT(values)};
    return ledger_add(l, &row, NULL, err);
}

/* ---- what a test printed ------------------------------------------------------------------------------------------------- */

/* "[0x03]" in older versions, "[0000:03:00]" in newer ones: the bus of a rank. */
static bool rank_on(struct str line, const char *pci)
{
    char bus[16], older[16], older_upper[16];
    snprintf(bus, sizeof bus, "[%.10s", pci);
    snprintf(older, sizeof older, "[0x%.2s]", pci + 5);
    for (size_t i = 0; i < sizeof older_upper; i++)
        older_upper[i] = i < 3 ? older[i] : (char)toupper((unsigned char)older[i]);
    return str_find(line, str_of(bus)) >= 0 || ((strncmp(pci, "0000:", 5) == 0) && (str_find(line, str_of(older)) >= 0 || str_find(line, str_of(older_upper)) >= 0));
}

/* The number after "key" and ':' in a comment line. */
static bool comment(struct str line, const char *key, double *ret)
{
    char text[64];
    ptrdiff_t at = str_find(line, str_of(key)), colon;
    if (!str_starts(line, STR("#")) || at < 0)
        return false;
    struct str rest = {line.ptr + at, line.len - (size_t)at};
    colon = str_find_char(rest, ':');
    if (colon < 0)
        return false;
    rest = str_trim((struct str){rest.ptr + colon + 1, rest.len - (size_t)colon - 1});
    struct str number = str_split(&rest, ' ');
    if (number.len == 0 || number.len >= sizeof text)
        return false;
    memcpy(text, number.ptr, number.len);
    text[number.len] = '\0';
    char *end;
    *ret = strtod(text, &end);
    return *end == '\0' && *ret >= 0 && *ret < 1e9; /* not so for what is no number */
}

int doctor_collective_read(struct str output, const struct hw *h, const struct fleet_host *host, double *ret_bus_bytes_s, struct err *err)
{
    bool in[HW_DEVICES_MAX], seen[HW_DEVICES_MAX] = {false}, judged = false, told = false, odd = false;
    double wrong = 0, average = 0, v;
    chosen(h, host, in);
    while (output.ptr) {
        struct str line = str_trim(str_split(&output, '\n'));
        if (str_starts(line, STR("#")) && str_find(line, STR("Rank")) >= 0)
            for (size_t i = 0; i < h->n_devices; i++)
                seen[i] = seen[i] || rank_on(line, h->devices[i].pci);
        /* a command may run several tests: what one of them got wrong is wrong, and the slowest counts */
        if (comment(line, "Out of bounds values", &v)) {
            wrong += v;
            judged = true;
        } else {
            odd = odd || str_find(line, STR("Out of bounds values")) >= 0;
        }
        if (comment(line, "Avg bus bandwidth", &v)) {
            average = told && average < v ? average : v;
            told = true;
        }
    }
    for (size_t i = 0; i < h->n_devices; i++)
        if (in[i] && !seen[i])
            return err_set(err, -EBADMSG, "the test did not run on %s: give it as many GPUs as the host has (-g)", h->devices[i].pci);
    if (!judged || odd)
        return err_set(err, -EBADMSG, "the test did not say how many of its values were wrong ('# Out of bounds values'): run it with checks (-c 1)");
    if (wrong > 0)
        return err_set(err, -EBADMSG, "%.0f values were wrong", wrong);
    if (!told || average <= 0)
        return err_set(err, -EBADMSG, "the test did not say its average ('# Avg bus bandwidth')");
    *ret_bus_bytes_s = average * 1e9;
    return 0;
}
