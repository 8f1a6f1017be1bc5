/* SPDX-License-Identifier: MIT
 *
 * Fuzzer: what anybody may answer to the battery's questions. The first byte chooses the question and the status. An answer passes or is refused with a reason that can be printed.
 */
#include <probe/probe.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const drafter[] = {"draft-simple"}, *const words[] = {"low"};
    static const struct fleet_host host = {.name = "here"};
    static const struct fleet_runtime runtime = {.name = "r", .engine = "llama.cpp"};
    static const unsigned statuses[] = {200, 401, 500};
    if (size == 0)
        return 0;
    const struct fleet_service s = {.name = "small", .host = &host, .runtime = &runtime, .port = 1, .bind = "127.0.0.1", .serves = {.efforts = words, .n_efforts = 1},
                                    .shape = {.split_auto = true, .slots = 2, .context = 2048, .speculative = drafter, .n_speculative = 1}};
    struct probe_seen seen = {.chat_tokens = 13, .text_tokens = data[0] & 128 ? 250 : 0};
    struct err err = {0};
    int r = probe_check_judge(&s, (enum probe_check)(data[0] % PROBE_CHECKS), 0, statuses[data[0] / PROBE_CHECKS % 3], (struct str){(const char *)data + 1, size - 1}, &seen, &err);
    if (r < 0 && (err.code != r || err.text[0] == '\0' || !str_is_utf8(str_of(err.text))))
        abort();
    return 0;
}
