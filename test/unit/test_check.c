/* SPDX-License-Identifier: MIT
 *
 * The parts of check that compute: what a firewall does with a probe, what files of clients say and are made of, addresses of clients. The contracts as a whole are test/cli/check_teeth.bats.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <check/check_int.h>
#include <firewall/firewall.h>
#include <client/client.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- firewalls ---------------------------------------------------------------------------------------------------- */

static unsigned ask(const char *text, uint16_t port, bool loopback, unsigned *ret_line)
{
    struct arena *a = arena_new(16 << 20);
    struct firewall f;
    struct err err;
    assert_non_null(a);
    if (firewall_parse(str_of(text), a, &f, &err) < 0)
        fail_msg("%s", err.text);
    unsigned may = firewall_ask(&f, &(struct firewall_probe){.port = port, .loopback = loopback}, ret_line);
    arena_free(a);
    return may;
}

#define NFT(rules) "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n" rules "\t}\n}\n"

static const struct {
    const char *what, *text;
    uint16_t port;
    bool loopback;
    unsigned may, line;
} cases[] = {
    {"no rules", "", 7770, true, FIREWALL_PASSES, 0},
    {"policy alone", NFT(""), 7770, true, FIREWALL_STOPS, 2},
    {"policy accepts", "table ip t {\n chain i {\n type filter hook input priority 0; policy accept;\n }\n}\n", 7770, false, FIREWALL_PASSES, 0},
    {"lo accepted", NFT("\t\tiif \"lo\" accept\n"), 7770, true, FIREWALL_PASSES, 0},
    {"lo accepted, another machine", NFT("\t\tiif \"lo\" accept\n"), 7770, false, FIREWALL_STOPS, 2},
    {"established is not new", NFT("\t\tct state { established, related } accept\n"), 7770, true, FIREWALL_STOPS, 2},
    {"state new", NFT("\t\tct state new,established accept\n"), 7770, true, FIREWALL_PASSES, 0},
    {"port in a set", NFT("\t\ttcp dport { 22, 7770-7779 } accept\n"), 7775, false, FIREWALL_PASSES, 0},
    {"port not in it", NFT("\t\ttcp dport { 22, 7770-7779 } accept\n"), 7780, false, FIREWALL_STOPS, 2},
    {"not that port", NFT("\t\ttcp dport != 22 accept\n"), 7770, false, FIREWALL_PASSES, 0},
    {"udp", NFT("\t\tudp dport 7770 accept\n"), 7770, true, FIREWALL_STOPS, 2},
    {"a network", NFT("\t\tip saddr 10.0.0.0/8 tcp dport 8080 accept\n"), 8080, false, FIREWALL_PASSES | FIREWALL_STOPS, 2},
    {"a network, over lo", NFT("\t\tip saddr 127.0.0.0/8 accept\n"), 8080, true, FIREWALL_PASSES, 0},
    {"a named set", NFT("\t\tip saddr @lan accept\n"), 8080, false, FIREWALL_PASSES | FIREWALL_STOPS, 2},
    {"dropped by a rule", NFT("\t\ttcp dport 7770 counter packets 0 bytes 0 drop\n\t\taccept\n"), 7770, true, FIREWALL_STOPS, 4},
    {"logged, then accepted", NFT("\t\tlog prefix \"in \" level warn\n\t\tiif \"lo\" log accept\n"), 7770, true, FIREWALL_PASSES, 0},
    {"a limit may end", NFT("\t\tlimit rate 5/second accept\n"), 7770, true, FIREWALL_PASSES | FIREWALL_STOPS, 2},
    {"vmap", NFT("\t\tct state vmap { established : accept, new : accept }\n"), 7770, true, FIREWALL_PASSES, 0},
    {"vmap that jumps", "table inet f {\n chain input {\n type filter hook input priority 0; policy drop;\n iifname vmap { \"lo\" : jump own, \"eth0\" : drop }\n }\n chain own {\n tcp dport 7770 accept\n }\n}\n", 7770, true, FIREWALL_PASSES, 0},
    {"jump and back", "table inet f {\n chain input {\n type filter hook input priority 0; policy drop;\n jump own\n iif lo accept\n }\n chain own {\n tcp dport 22 accept\n }\n}\n", 7770, true, FIREWALL_PASSES, 0},
    {"goto does not come back", "table inet f {\n chain input {\n type filter hook input priority 0; policy drop;\n goto own\n iif lo accept\n }\n chain own {\n tcp dport 22 accept\n }\n}\n", 7770, true, FIREWALL_STOPS, 2},
    {"a jump that never ends", "table inet f {\n chain input {\n type filter hook input priority 0; policy drop;\n jump input\n }\n}\n", 7770, true, FIREWALL_PASSES | FIREWALL_STOPS, 4},
    {"output stops a probe of ours", "table inet f {\n chain o {\n type filter hook output priority 0; policy accept;\n oif lo tcp dport 7770 reject with tcp reset\n }\n}\n", 7770, true, FIREWALL_STOPS, 4},
    {"two chains, one stops", "table ip a {\n chain i {\n type filter hook input priority 0; policy accept;\n }\n}\ntable ip b {\n chain i {\n type filter hook input priority 1; policy drop;\n }\n}\n", 7770, true, FIREWALL_STOPS, 7},
    {"tables of IPv6 have no say", "table ip6 a {\n chain i {\n type filter hook input priority 0; policy drop;\n }\n}\n", 7770, true, FIREWALL_PASSES, 0},
    {"nat has none either", "table ip a {\n chain i {\n type nat hook input priority 0; policy drop;\n }\n}\n", 7770, true, FIREWALL_PASSES, 0},
    {"iptables: lo", "*filter\n:INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n", 7770, true, FIREWALL_PASSES, 0},
    {"iptables: policy", "*filter\n:INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n", 7770, false, FIREWALL_STOPS, 2},
    {"iptables: port and protocol", "*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp -m tcp --dport 7000:8000 -j ACCEPT\nCOMMIT\n", 7770, false, FIREWALL_PASSES, 0},
    {"iptables: a list of ports", "*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp -m multiport --dports 22,443 -j ACCEPT\nCOMMIT\n", 7770, true, FIREWALL_STOPS, 2},
    {"iptables: not lo", "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT ! -i lo -j DROP\nCOMMIT\n", 7770, true, FIREWALL_PASSES, 0},
    {"iptables: not lo, from elsewhere", "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT ! -i lo -j DROP\nCOMMIT\n", 7770, false, FIREWALL_STOPS, 3},
    {"iptables: a chain of one's own", "*filter\n:INPUT DROP [0:0]\n:own - [0:0]\n-A INPUT -j own\n-A own -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT\nCOMMIT\n", 7770, true, FIREWALL_PASSES, 0},
    {"iptables: LOG goes on", "*filter\n:INPUT DROP [0:0]\n-A INPUT -j LOG --log-prefix \"x y \"\n-A INPUT -j ACCEPT\nCOMMIT\n", 7770, true, FIREWALL_PASSES, 0},
    {"iptables: other tables have no say", "*raw\n:PREROUTING DROP [0:0]\nCOMMIT\n*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n", 7770, true, FIREWALL_PASSES, 0},
};

static void firewalls_answer(void **state)
{
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        unsigned line = 99, may = ask(cases[i].text, cases[i].port, cases[i].loopback, &line);
        if (may != cases[i].may || line != cases[i].line)
            fail_msg("%s: %u at line %u, not %u at %u", cases[i].what, may, line, cases[i].may, cases[i].line);
    }
}

static void firewalls_that_are_none(void **state)
{
    static const char *const texts[] = {"hello\n", "table inet f {\n chain input {\n", "<html>\n", "table inet f {\n\xff\n}\n"};
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(texts); i++) {
        struct arena *a = arena_new(1 << 20);
        struct firewall f;
        struct err err;
        assert_int_equal(firewall_parse(str_of(texts[i]), a, &f, &err), -EBADMSG);
        arena_free(a);
    }
}

/* Chains that jump to each other many times over end by the number of steps, not by the patience of whoever waits. */
static void firewalls_end(void **state)
{
    (void)state;
    base_autobuf struct buf text = BUF_INIT(1 << 20);
    buf_add_c(&text, "*filter\n:INPUT DROP [0:0]\n");
    for (int i = 0; i < 16; i++)
        buf_addf(&text, ":c%d - [0:0]\n", i);
    for (int k = 0; k < 10; k++)
        buf_add_c(&text, "-A INPUT -j c0\n");
    for (int i = 0; i < 15; i++)
        for (int k = 0; k < 10; k++)
            buf_addf(&text, "-A c%d -j c%d\n", i, i + 1);
    buf_add_c(&text, "COMMIT\n");
    assert_int_equal(buf_status(&text), 0);
    unsigned line;
    assert_int_equal(ask(text.ptr, 7770, true, &line), FIREWALL_PASSES | FIREWALL_STOPS);
}

/* ---- files of clients ---------------------------------------------------------------------------------------------- */

static void clients_say_what_was_written(void **state)
{
    (void)state;
    static const struct fleet_effort efforts[] = {{"low", "low"}, {"high", "xhigh"}};
    const struct client_model models[] = {{.name = "medium", .window = 131072, .output = 39322, .image = true, .efforts = efforts, .n_efforts = 2}, {.name = "Qwen/Q3:27b", .window = 8192, .output = 2458}};
    const struct client_plan p = {.fleet = "home", .url = "http://[::1]:8080/v1", .key_env = "BERTH_KEY", .compact = 70, .models = models, .n_models = 2};
    for (int f = 0; f < FLEET_FORMATS; f++) {
        base_autobuf struct buf out = BUF_INIT(CLIENT_TEXT_MAX);
        struct arena *a = arena_new(4 << 20);
        struct client_claim *c = NULL;
        size_t n = 0;
        struct err err;
        if (client_render((enum fleet_format)f, &p, &out, &err) < 0 || client_read((enum fleet_format)f, buf_str(&out), a, &c, &n, &err) < 0)
            fail_msg("%s: %s", fleet_format_name((enum fleet_format)f), err.text);
        assert_int_equal(n, f == FLEET_LITELLM ? 4 : 2);
        assert_true(str_eq_c(c[0].name, "medium"));
        assert_int_equal(c[0].window, 131072);
        assert_int_equal(c[0].output, 39322);
        assert_true(c[0].image);
        assert_false(c[0].audio || c[n - 1].image);
        assert_true(c[0].line > 0 && c[n - 1].line > c[0].line);
        assert_true(str_eq_c(c[n - 1].name, "Qwen/Q3:27b"));
        assert_true(f == FLEET_AIDER ? c[0].url.len == 0 : str_eq_c(c[0].url, p.url));
        size_t words = f == FLEET_OPENCODE || f == FLEET_JSON ? 2 : 0;
        assert_int_equal(c[0].n_efforts, words);
        if (words)
            assert_true(str_eq_c(c[0].efforts[1], "xhigh"));
        if (f == FLEET_LITELLM)
            assert_true(str_eq_c(c[2].efforts[0], "xhigh") && str_eq_c(c[2].name, "medium"));
        if (f != FLEET_AIDER)
            assert_true(str_find(buf_str(&out), STR("BERTH_KEY")) >= 0);
        arena_free(a);
    }
}

static void clients_that_are_none(void **state)
{
    static const struct {
        enum fleet_format f;
        const char *text, *want;
    } bad[] = {
        {FLEET_OPENCODE, "{}", "it has no \"provider\""},
        {FLEET_OPENCODE, "[]", "1:1: it is no JSON object"},
        {FLEET_OPENCODE, "{\"provider\": {\"p\": {\"options\": {\"baseURL\": \"u\"},\n\"models\": {\"m\": {\"limit\": {\"output\": 1, \"context\": 8, \"output\": 9}}}}}}", "2:1: key \"output\" stands twice in one object"},
        {FLEET_AIDER, "{\"openai/b\": {}, \"openai/a\": {}, \"openai/b\": {}}", "1:1: key \"openai/b\" stands twice in one object"},
        {FLEET_JSON, "{\n  \"models\": {,}\n}", "2:"},
        {FLEET_CONTINUE, "a: 1\n", "it has no list 'models'"},
        {FLEET_LITELLM, "model_list: x\n", "it has no list 'model_list'"},
        {FLEET_LITELLM, "a: &b 1\n", "1:"},
    };
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        struct arena *a = arena_new(1 << 20);
        struct client_claim *c = NULL;
        size_t n = 0;
        struct err err = {0};
        assert_int_equal(client_read(bad[i].f, str_of(bad[i].text), a, &c, &n, &err), -EBADMSG);
        if (strncmp(err.text, bad[i].want, strlen(bad[i].want)) != 0)
            fail_msg("'%s' says '%s', not '%s'", bad[i].text, err.text, bad[i].want);
        arena_free(a);
    }
}

/* ---- addresses --------------------------------------------------------------------------------------------------------- */

static void urls_have_hosts_and_ports(void **state)
{
    static const struct {
        const char *url, *host;
        unsigned port;
    } good[] = {{"http://big.example:8080/v1", "big.example", 8080}, {"https://[2001:db8::7]/v1", "2001:db8::7", 443}, {"http://[::1]:81", "::1", 81}, {"http://h", "h", 80}};
    (void)state;
    struct arena *a = arena_new(1 << 16);
    const char *host;
    uint16_t port;
    for (size_t i = 0; i < BASE_COUNT(good); i++) {
        assert_int_equal(check_url_host(good[i].url, a, &host, &port), 0);
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
    }
    arena_free(a);
}

static void clients_are_told_where(void **state)
{
    (void)state;
    struct fleet_host hosts[] = {{.name = "here", .address = "192.0.2.1"}, {.name = "far", .ssh = "op@far"}};
    struct fleet f = {.hosts = hosts, .n_hosts = 2, .router = {.declared = true, .address = "127.0.0.1", .port = 8080}};
    struct fleet_client c = {.name = "c"};
    struct arena *a = arena_new(1 << 16);
    const char *url = NULL;
    assert_int_equal(check_client_url(&f, &c, a, &url, NULL), 0);
    assert_string_equal(url, "http://127.0.0.1:8080/v1");
    f.router.address = "::";
    f.router.certificate = "/c";
    assert_int_equal(check_client_url(&f, &c, a, &url, NULL), 0);
    assert_string_equal(url, "https://[::1]:8080/v1");
    c.network = FLEET_NETWORK_BRIDGE;
    assert_int_equal(check_client_url(&f, &c, a, &url, NULL), 0);
    assert_string_equal(url, "https://host.containers.internal:8080/v1");
    c = (struct fleet_client){.name = "c", .host = &hosts[1]};
    assert_int_equal(check_client_url(&f, &c, a, &url, NULL), 0);
    assert_string_equal(url, "https://192.0.2.1:8080/v1");
    hosts[0].address = NULL;
    assert_int_equal(check_client_url(&f, &c, a, &url, NULL), -EINVAL);
    f.router.socket = "/run/s";
    c.elsewhere = true;
    assert_int_equal(check_client_url(&f, &c, a, &url, NULL), -EINVAL);
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(firewalls_answer),
        cmocka_unit_test(firewalls_that_are_none),
        cmocka_unit_test(firewalls_end),
        cmocka_unit_test(clients_say_what_was_written),
        cmocka_unit_test(clients_that_are_none),
        cmocka_unit_test(urls_have_hosts_and_ports),
        cmocka_unit_test(clients_are_told_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
