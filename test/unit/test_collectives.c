/* SPDX-License-Identifier: MIT
 *
 * Which services bind cards together, and that a deploy refuses them until collectives are proven on exactly this hardware.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "machine.h"

#include <deploy/deploy_int.h>
#include <errno.h>

static const struct fleet_device devices[] = {{.name = "ROCm1", .memory_bytes = 1, .pci = "0000:03:00.0"}, {.name = "ROCm0", .memory_bytes = 1, .pci = "0000:07:00.0"}};
static const struct fleet_host two = {.name = "big", .devices = devices, .n_devices = 2}, one = {.name = "small", .devices = devices, .n_devices = 1}, none = {.name = "bare"};
static const struct fleet_runtime vllm = {.engine = "vllm"}, llama = {.engine = "llama.cpp"}, generic = {.engine = "generic"};

static void who_needs_them(void **state)
{
    (void)state;
    static const struct {
        const struct fleet_host *host;
        const struct fleet_runtime *runtime;
        const char *words[5];
        unsigned ranks;
    } cases[] = {
        {&two, &vllm, {NULL}, 2},
        {&one, &vllm, {NULL}, 1},
        {&none, &vllm, {NULL}, 1},
        {&one, &vllm, {"--pipeline-parallel-size", "2"}, 2},
        {&two, &vllm, {"-pp=2"}, 4},
        {&one, &vllm, {"--pipeline_parallel_size=many"}, 2},
        {&one, &vllm, {"-pp"}, 2},
        {&one, &vllm, {"--data-parallel-size", "1"}, 1},
        {&two, &llama, {NULL}, 1},
        {&two, &llama, {"--split-mode", "layer"}, 1},
        {&two, &llama, {"--split-mode", "tensor"}, 2},
        {&two, &llama, {"-sm=tensor"}, 2},
        {&one, &llama, {"-sm", "tensor"}, 1},
        {&two, &llama, {"-sm"}, 1},
        {&two, &generic, {"serve", "{model}"}, 1},
        {&none, &generic, {"serve", "--tp", "4"}, 4},
        {&none, &generic, {"serve", "--tp-size=2", "--pp-size=3"}, 6},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        size_t n = 0;
        while (n < BASE_COUNT(cases[i].words) && cases[i].words[n])
            n++;
        const struct fleet_service s = {.name = "s", .host = cases[i].host, .runtime = cases[i].runtime, .args = cases[i].words, .n_args = n, .command = cases[i].words, .n_command = n};
        if (engine_ranks(&s) != cases[i].ranks)
            fail_msg("case %zu: %u", i, engine_ranks(&s));
    }
}

static struct hw h;
static struct ledger *l;

static void read_machine(const char *machine)
{
    struct hw_reader *r = NULL;
    char path[128];
    unpack(machine);
    assert_int_equal(hw_open(folder, &r, NULL), 0);
    assert_int_equal(hw_read(r, &h, NULL), 0);
    hw_close(r);
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    assert_int_equal(ledger_open(path, &l, NULL), 0);
}

static void refused_until_proven(void **state)
{
    (void)state;
    const struct fleet_service s = {.name = "s", .host = &two, .runtime = &vllm}, alone = {.name = "a", .host = &one, .runtime = &vllm};
    struct buf key = BUF_INIT(4096);
    struct err err;
    read_machine("two-r9700");
    assert_int_equal(deploy_collectives_judge(&alone, &h, l, false, &err), 0);
    assert_int_equal(deploy_collectives_judge(&s, &h, l, false, &err), -EPERM);
    assert_non_null(strstr(err.text, "it binds 2 cards together, and no collective was proven on this hardware"));
    assert_non_null(strstr(err.text, "all_reduce_perf -g 2"));
    assert_int_equal(deploy_collectives_judge(&s, &h, NULL, false, &err), -EPERM);
    assert_int_equal(deploy_collectives_judge(&s, &h, l, true, &err), 0); /* with a person's permission */
    assert_int_equal(deploy_collectives_judge(&s, &h, l, false, &err), -EPERM); /* which proves nothing by itself */

    assert_true(doctor_collective_key(&h, &two, &key));
    assert_int_equal(doctor_collective_add(l, key.ptr, "all_reduce_perf", 6.5e9, &err), 0);
    assert_int_equal(deploy_collectives_judge(&s, &h, l, false, &err), 0);
    /* a narrower slot is other hardware */
    h.devices[1].link.width = 2;
    assert_int_equal(deploy_collectives_judge(&s, &h, l, false, &err), -EPERM);
    h.devices[1].link.width = 4;
    snprintf(h.devices[0].driver_version, sizeof h.devices[0].driver_version, "6.99");
    assert_int_equal(deploy_collectives_judge(&s, &h, l, false, &err), -EPERM);
    /* a card that is gone */
    h.n_devices = 1;
    assert_int_equal(deploy_collectives_judge(&s, &h, l, true, &err), -ENODEV);
    assert_non_null(strstr(err.text, "this machine has not two of those that host 'big' declares"));
    buf_release(&key);
    l = ledger_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_needs_them), cmocka_unit_test_setup_teardown(refused_until_proven, make_folder, remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
