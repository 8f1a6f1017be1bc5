/* SPDX-License-Identifier: MIT
 *
 * Inside of probe: one question to an engine, and the limits of all questions.
 */
#pragma once

#include "probe.h"

#define PROBE_FIRST_WAIT_MS 200       /* between the first two questions for health; a small model loads in less */
#define PROBE_MAX_WAIT_MS 1000        /* between two questions later: an engine that loads has better things to do */
#define PROBE_POLL_MS 1000            /* between two questions for idleness */
#define PROBE_ANSWER_MS 10000         /* for one answer; a loading engine may be slow to take a connection */
#define PROBE_TOKEN_MS 120000         /* for one token at least: the first one reads weights that were only mapped */
#define PROBE_CHECK_MS 300000         /* for one answer of the battery: some hundred tokens of a large model on a CPU */
#define PROBE_QUESTION_MAX (512UL * 1024) /* of a question's body: a sound of one second is the largest */
#define PROBE_TOOL_NAME "set_light"
#define PROBE_TEXT_BYTES 1000         /* of the longer message: about 250 tokens */
#define PROBE_BODY_MAX (4UL * 1024 * 1024) /* of an answer: /props quotes the whole chat template */

/* Asks once on a fresh connection: a pooled one may lead to a process that is gone. body NULL is a GET, else a POST of JSON. NULL without memory. */
struct httpio_fetch *probe_ask(struct httpio_client *c, const struct probe_target *t, const char *path, const char *body, uint64_t timeout_ms,
                               httpio_fetched *cb, void *ctx) BASE_MUST_USE;

/* Of a service's longer message: what its slots can hold three times. */
size_t probe_text_bytes(const struct fleet_service *s);

/* media.c: a picture of one colour, red, and a tone, in base64, appended to out. */
void probe_add_picture(struct buf *out);
void probe_add_tone(struct buf *out);
