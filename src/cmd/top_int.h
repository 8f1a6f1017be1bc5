/* SPDX-License-Identifier: MIT
 *
 * cmd, private: the parts of berth top.
 */
#pragma once

#include "cmd_int.h"

#include <conf/conf.h>

/* What is shown, as the supervisor told it; all NULL when it did not. */
struct top_data {
    struct json *status, *requests;
    char error[ERR_TEXT_MAX]; /* why there is nothing; "" */
};

enum top_list { TOP_REQUESTS, TOP_RECENT };
/* One line about the whole. */
void top_headline(const struct top_data *d, struct buf *out);
/* Tables; -ENOMEM. */
int top_replicas(const struct top_data *d, bool color, struct buf *out) BASE_MUST_USE;
int top_requests(const struct top_data *d, enum top_list which, size_t max, bool color, struct buf *out) BASE_MUST_USE;
/* How many there are, and the id of one; 0: there is none. */
size_t top_count(const struct top_data *d, enum top_list which);
uint64_t top_id(const struct top_data *d, enum top_list which, size_t i);
