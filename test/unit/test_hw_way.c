/* SPDX-License-Identifier: MIT
 *
 * Ways of cards on recorded machines: each link, the narrowest, atomic operations by libpci's reading of a dump; what drivers tell of cards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "machine.h"

#include <hw/hw_int.h>
#include <sys/stat.h>
#include <unistd.h>

struct read {
    struct hw hw;
    struct hw_way ways[HW_DEVICES_MAX];
    struct hw_card cards[HW_DEVICES_MAX];
    bool config;
};

static struct read *see(void)
{
    static struct read m;
    struct hw_reader *r = NULL;
    assert_int_equal(hw_open(folder, &r, NULL), 0);
    assert_int_equal(hw_read(r, &m.hw, NULL), 0);
    m.config = hw_ways(r, &m.hw, m.ways);
    hw_cards(r, &m.hw, m.cards);
    hw_close(r);
    return &m;
}

static struct read *machine(const char *name)
{
    unpack(name);
    return see();
}

/* ---- ways ------------------------------------------------------------------------------------------------------- */

static void behind_the_chipset(void **state)
{
    (void)state;
    struct read *m = machine("chipset-x4");
    struct hw_span s;
    size_t at = 99;
    assert_true(m->config);
    assert_int_equal(m->hw.n_devices, 2);
    const struct hw_way *a = &m->ways[0], *b = &m->ways[1];

    assert_int_equal(a->n, 4);
    assert_false(a->cut);
    assert_string_equal(a->hops[0].pci, "0000:03:00.0");
    assert_string_equal(a->hops[1].pci, "0000:02:00.0");
    assert_string_equal(a->hops[2].pci, "0000:01:00.0");
    assert_string_equal(a->hops[3].pci, "0000:00:01.1");
    assert_int_equal(a->hops[0].port, HW_PORT_ENDPOINT);
    assert_int_equal(a->hops[1].port, HW_PORT_DOWN);
    assert_int_equal(a->hops[2].port, HW_PORT_UP);
    assert_int_equal(a->hops[3].port, HW_PORT_ROOT);
    assert_int_equal(a->hops[3].vendor_id, 0x1022);
    assert_int_equal(a->hops[3].device_id, 0x14db);
    assert_true(a->hops[0].requests);
    assert_true(a->hops[1].routes && a->hops[2].routes);
    assert_true(a->hops[3].completes32 && a->hops[3].completes64 && !a->hops[3].blocks);
    assert_int_equal(a->hops[3].target_gen, 5);
    assert_int_equal(hw_way_atomics(a, &at), HW_ATOMICS_THROUGH);
    assert_true(hw_way_narrowest(a, &s)); /* of equal links the one at the CPU */
    assert_int_equal(s.at, 2);
    assert_int_equal(s.gen, 4);
    assert_int_equal(s.width, 16);
    assert_int_equal(s.bytes_s, 31507692304);
    assert_false(hw_way_span(a, 3, &s));

    assert_int_equal(b->n, 6);
    assert_string_equal(b->hops[3].pci, "0000:05:08.0");
    assert_true(hw_way_narrowest(b, &s));
    assert_int_equal(s.at, 4);
    assert_string_equal(b->hops[s.at + 1].pci, "0000:00:02.1");
    assert_int_equal(s.width, 4);
    assert_int_equal(s.bytes_s, 7876923076);
    assert_int_equal(hw_way_atomics(b, &at), HW_ATOMICS_STOPPED);
    assert_string_equal(b->hops[at].pci, "0000:04:00.0"); /* the chipset's port at the CPU */
}

static void a_riser(void **state)
{
    (void)state;
    struct read *m = machine("riser");
    struct hw_span s;
    size_t at = 99;
    assert_int_equal(hw_way_atomics(&m->ways[0], &at), HW_ATOMICS_THROUGH);
    assert_true(hw_way_span(&m->ways[0], 2, &s));
    assert_int_equal(s.gen, 3);
    assert_int_equal(s.can_gen, 5);
    assert_int_equal(s.width, 16);
    assert_int_equal(s.can_width, 16);
    assert_true(hw_way_span(&m->ways[0], 0, &s)); /* inside of the card */
    assert_int_equal(s.gen, 5);
    /* firmware that was told to allow no more */
    m->ways[0].hops[3].target_gen = 3;
    assert_true(hw_way_narrowest(&m->ways[0], &s));
    assert_int_equal(s.at, 2);
    assert_int_equal(s.bytes_s, 15753846160);
}

static void no_atomics(void **state)
{
    (void)state;
    struct read *m = machine("no-atomics");
    struct hw_span s;
    size_t at = 99;
    assert_int_equal(m->ways[0].n, 2);
    assert_int_equal(hw_way_atomics(&m->ways[0], &at), HW_ATOMICS_STOPPED);
    assert_int_equal(at, 1); /* the slot's own port */
    assert_true(hw_way_narrowest(&m->ways[0], &s));
    assert_int_equal(s.width, 2);
    assert_int_equal(s.can_width, 2); /* the slot has no more */
    assert_int_equal(s.bytes_s, 1969230770);
}

static void without_configuration_space(void **state)
{
    (void)state;
    size_t at = 99;
    struct hw_span s;
    struct read *m = machine("two-r9700"); /* recorded without it */
    assert_false(m->config);
    assert_int_equal(m->ways[1].n, 4);
    assert_int_equal(m->ways[1].hops[0].port, HW_PORT_UNKNOWN);
    assert_int_equal(hw_way_atomics(&m->ways[1], &at), HW_ATOMICS_UNKNOWN);
    assert_true(hw_way_narrowest(&m->ways[1], &s));
    assert_int_equal(s.at, 2);
    assert_int_equal(s.bytes_s, 7876923076);
}

static void a_virtual_machine(void **state)
{
    (void)state;
    struct read *m = machine("bare");
    struct hw_span s;
    assert_false(m->config);
    assert_int_equal(m->ways[0].n, 0);
    assert_false(hw_way_narrowest(&m->ways[0], &s));
}

static void each_port_can_stop_them(void **state)
{
    (void)state;
    struct hw_way w = {.n = 3, .hops = {{.config = true, .port = HW_PORT_ENDPOINT, .requests = true}, {.config = true, .port = HW_PORT_DOWN, .routes = true}, {.config = true, .port = HW_PORT_ROOT, .completes32 = true, .completes64 = true}}};
    size_t at = 99;
    assert_int_equal(hw_way_atomics(&w, &at), HW_ATOMICS_THROUGH);
    w.hops[0].requests = false;
    assert_int_equal(hw_way_atomics(&w, &at), HW_ATOMICS_STOPPED);
    assert_int_equal(at, 0);
    w.hops[1].blocks = true;
    assert_int_equal(hw_way_atomics(&w, &at), HW_ATOMICS_STOPPED);
    assert_int_equal(at, 1);
    w.hops[2].completes64 = false;
    assert_int_equal(hw_way_atomics(&w, &at), HW_ATOMICS_STOPPED);
    assert_int_equal(at, 2);
    w.hops[2] = (struct hw_hop){.config = true, .port = HW_PORT_OTHER};
    assert_int_equal(hw_way_atomics(&w, &at), HW_ATOMICS_STOPPED);
    w.hops[1].config = false;
    assert_int_equal(hw_way_atomics(&w, &at), HW_ATOMICS_UNKNOWN);
    w.hops[1].config = true;
    w.cut = true;
    assert_int_equal(hw_way_atomics(&w, &at), HW_ATOMICS_UNKNOWN);
}

/* A way of more bridges than are kept: the card's end is. */
static void a_long_way(void **state)
{
    (void)state;
    unpack("no-atomics");
    char path[512], link[512], target[400] = "../../../devices/pci0000:00/";
    for (unsigned i = 0; i < 14; i++)
        snprintf(target + strlen(target), sizeof target - strlen(target), "0000:%02x:00.0/", i + 0x20);
    snprintf(link, sizeof link, "%s0000:01:00.0", target);
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/0000:01:00.0", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(link, path), 0);
    char tree[512];
    snprintf(tree, sizeof tree, "%s/sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.0", folder);
    struct hw_reader *r = NULL;
    assert_int_equal(hw_open(folder, &r, NULL), 0);
    struct hw h = {.n_devices = 1};
    snprintf(h.devices[0].pci, sizeof h.devices[0].pci, "0000:01:00.0");
    static struct hw_way ways[HW_DEVICES_MAX];
    hw_ways(r, &h, ways);
    assert_true(ways[0].cut);
    assert_int_equal(ways[0].n, HW_HOPS_MAX);
    assert_string_equal(ways[0].hops[0].pci, "0000:01:00.0");
    assert_string_equal(ways[0].hops[1].pci, "0000:2d:00.0");
    assert_string_equal(ways[0].hops[HW_HOPS_MAX - 1].pci, "0000:23:00.0");
    hw_close(r);
}

/* What libpci refuses, and what it is not given. */
static void dumps_that_say_nonsense(void **state)
{
    (void)state;
    unpack("no-atomics");
    size_t at = 99;
    static const char *const texts[] = {"", "what is this\n", "01:00.0 x\n00: zz\n", "01:00.0 x\n00: 02 10 df 67 06 04 10 00 00 00 00 03 10 00 80 00\n30: 00 00 00 00 34\n", "00: 01 02\n", "ffffffff:01:00.0 x\n"};
    for (size_t i = 0; i < BASE_COUNT(texts); i++) {
        put("lspci", texts[i]);
        struct read *m = see();
        assert_false(m->ways[0].hops[0].config);
        assert_int_equal(hw_way_atomics(&m->ways[0], &at), HW_ATOMICS_UNKNOWN);
    }
    char path[512];
    snprintf(path, sizeof path, "%s/lspci", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* is not waited for */
    assert_false(see()->config);
}

/* ---- cards --------------------------------------------------------------------------------------------------------- */

static void cards_of_amd(void **state)
{
    (void)state;
    struct read *m = machine("chipset-x4");
    const struct hw_card *a = &m->cards[0], *b = &m->cards[1];
    assert_int_equal(a->visible_bytes, 25753026560);
    assert_int_equal(a->bar_bytes, 32ull << 30);
    assert_int_equal(a->power_cap_uw, 303000000);
    assert_int_equal(a->power_max_uw, 348000000);
    assert_true(a->busy_known);
    assert_int_equal(a->busy_percent, 0);
    assert_string_equal(a->gfx, "gfx1100");
    assert_string_equal(a->vbios, "113-D7020100-102");
    assert_int_equal(a->n_firmware, 3); /* a part of version 0 is none */
    assert_string_equal(a->firmware[0].name, "smc");
    assert_string_equal(a->firmware[0].version, "0x004e7e00");
    assert_string_equal(a->firmware[1].name, "mes");
    assert_true(a->driver_atomics_known && a->driver_atomics);
    assert_true(b->driver_atomics_known && !b->driver_atomics);
}

static void a_small_window(void **state)
{
    (void)state;
    struct read *m = machine("riser");
    assert_string_equal(m->cards[0].gfx, "gfx1201");
    assert_int_equal(m->cards[0].bar_bytes, 256ull << 20);
    assert_int_equal(m->cards[0].visible_bytes, 256ull << 20);
    assert_int_equal(m->cards[0].busy_percent, 97);
}

static void a_card_without_its_library(void **state)
{
    (void)state;
    struct read *m = machine("one-3090");
    assert_string_equal(m->cards[0].model, "NVIDIA GeForce RTX 3090");
    assert_string_equal(m->cards[0].vbios, "94.02.42.00.a9");
    assert_int_equal(m->cards[0].bar_bytes, 256ull << 20);
    assert_string_equal(m->cards[0].gfx, "");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(behind_the_chipset), CASE(a_riser), CASE(no_atomics), CASE(without_configuration_space), CASE(a_virtual_machine), cmocka_unit_test(each_port_can_stop_them), CASE(a_long_way), CASE(dumps_that_say_nonsense),
        CASE(cards_of_amd), CASE(a_small_window), CASE(a_card_without_its_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
