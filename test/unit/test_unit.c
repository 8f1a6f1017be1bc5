/* SPDX-License-Identifier: MIT
 *
 * Units as text: quoting, the keys of both forms, whose a unit is, which podman knows what. That systemd and Podman read them as meant is for the tests on real hosts.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <unit/unit.h>

static const struct fleet_host host = {.name = "here", .scope = FLEET_SYSTEM};
static const struct fleet_host user_host = {.name = "here", .scope = FLEET_USER};
static const struct fleet_runtime runtime = {.name = "llama", .engine = "llama.cpp"};
static const struct fleet_model model = {.name = "qwen", .weights = "qwen.gguf"};
static const struct fleet_service service = {.name = "medium", .host = &host, .runtime = &runtime, .model = &model, .port = 7770, .bind = "127.0.0.1", .unit = FLEET_SYSTEMD};

static const char *const argv[] = {"/srv/llama-server", "--alias", "100% of $HOME", "a;b", ";", ""};
static const char *const env[] = {"PATH=/usr/bin", "NOTE=50% of $X"};
static const char *const reads[] = {"/var/lib/berth/qwen.gguf", "/home/op/my models/t.jinja"};

static struct unit_input input(enum unit_form form)
{
    return (struct unit_input){.fleet = "home", .service = &service, .form = form, .argv = argv, .n_argv = BASE_COUNT(argv), .env = env, .n_env = BASE_COUNT(env), .reads = reads, .n_reads = BASE_COUNT(reads),
                               .start_limit_ms = 61000, .stop_limit_ms = 41000, .systemd = {257, 0}, .podman = {5, 4}, .image = "example/llama@sha256:00"};
}

static char text[65536];

static const char *render(const struct unit_input *in)
{
    base_autobuf struct buf out = BUF_INIT(sizeof text - 1);
    struct err err;
    assert_int_equal(unit_render(in, &out, &err), 0);
    memcpy(text, out.ptr, out.len + 1);
    return text;
}

static bool has_line(const char *all, const char *line)
{
    struct str rest = str_of(all);
    while (rest.ptr)
        if (str_eq_c(str_split(&rest, '\n'), line))
            return true;
    return false;
}

#define assert_line(all, line) \
    do { \
        if (!has_line(all, line)) \
            fail_msg("no line '%s' in:\n%s", line, all); \
    } while (0)

static void test_quote(void **state)
{
    (void)state;
    static const struct {
        const char *word, *text, *command;
    } cases[] = {
        {"plain-word_1.2,3:4/5@6+7=8", "plain-word_1.2,3:4/5@6+7=8", "plain-word_1.2,3:4/5@6+7=8"},
        {"", "\"\"", "\"\""},
        {"two words", "\"two words\"", "\"two words\""},
        {"say \"hi\"", "\"say \\\"hi\\\"\"", "\"say \\\"hi\\\"\""},
        {"back\\slash", "\"back\\\\slash\"", "\"back\\\\slash\""},
        {"ends\\", "\"ends\\\\\"", "\"ends\\\\\""},
        {"100%", "\"100%%\"", "\"100%%\""},
        {"$HOME", "\"$HOME\"", "\"$$HOME\""},
        {"a\nb\tc", "\"a\\x0ab\\x09c\"", "\"a\\x0ab\\x09c\""},
        {";", "\";\"", "\";\""},
        {"it's", "\"it's\"", "\"it's\""},
        {"\xc3\xa9t\xc3\xa9", "\"\xc3\xa9t\xc3\xa9\"", "\"\xc3\xa9t\xc3\xa9\""},
        {"#x", "\"#x\"", "\"#x\""},
        {"~", "\"~\"", "\"~\""},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        base_autobuf struct buf plain = BUF_INIT(256), command = BUF_INIT(256);
        assert_int_equal(unit_quote(str_of(cases[i].word), false, &plain), 0);
        assert_int_equal(unit_quote(str_of(cases[i].word), true, &command), 0);
        assert_string_equal(plain.ptr, cases[i].text);
        assert_string_equal(command.ptr, cases[i].command);
    }
    base_autobuf struct buf out = BUF_INIT(256);
    assert_int_equal(unit_quote(str_of("\xff"), true, &out), -EINVAL);
    assert_int_equal(unit_quote((struct str){"a\0b", 3}, true, &out), -EINVAL);
}

static void test_service(void **state)
{
    (void)state;
    struct unit_input in = input(UNIT_SERVICE);
    const char *t = render(&in);
    assert_line(t, "Description=medium: qwen by llama.cpp on port 7770, fleet home");
    assert_line(t, "ExecStart=/srv/llama-server --alias \"100%% of $$HOME\" \"a;b\" \";\" \"\"");
    assert_line(t, "Environment=\"NOTE=50%% of $X\"");
    assert_line(t, "Environment=HOME=%C/berth-home-medium XDG_CACHE_HOME=%C/berth-home-medium");
    assert_line(t, "RequiresMountsFor=\"/home/op/my models/t.jinja\"");
    /* what is not covered by the sandbox needs no hole in it */
    assert_line(t, "ProtectHome=tmpfs");
    assert_line(t, "BindReadOnlyPaths=\"/home/op/my models/t.jinja\"");
    assert_false(has_line(t, "BindReadOnlyPaths=/var/lib/berth/qwen.gguf"));
    assert_line(t, "Restart=always");
    assert_line(t, "StartLimitIntervalSec=0");
    assert_line(t, "RestartSteps=6");
    assert_line(t, "RestartMaxDelaySec=60");
    assert_line(t, "TimeoutStopSec=41");
    assert_line(t, "LimitMEMLOCK=infinity");
    assert_line(t, "PrivateDevices=no");
    assert_line(t, "DeviceAllow=char-kfd rw");
    assert_line(t, "DynamicUser=yes");
    assert_line(t, "WantedBy=multi-user.target");
    assert_null(strstr(t, "SupplementaryGroups"));
    assert_null(strstr(t, "ExecStop"));
}

static void test_service_variants(void **state)
{
    (void)state;
    static const char *const groups[] = {"render", "video"}, *const stop[] = {"/srv/berth", "_stop", "medium"};
    static const struct unit_credential key = {.name = "api-key", .path = "/etc/berth/a key"};
    struct fleet_service of_user = service;
    struct unit_input in = input(UNIT_SERVICE);
    in.groups = groups;
    in.n_groups = 2;
    in.stop = stop;
    in.n_stop = 3;
    in.credentials = &key;
    in.n_credentials = 1;
    in.systemd = (struct unit_version){252, 0};
    in.n_reads = 1;
    const char *t = render(&in);
    assert_line(t, "SupplementaryGroups=render video");
    assert_line(t, "ExecStop=/srv/berth _stop medium");
    assert_line(t, "LoadCredential=api-key:/etc/berth/a key");
    assert_line(t, "ProtectHome=yes");
    /* what an engine compiles outlives it */
    assert_line(t, "CacheDirectory=berth-home-medium");
    assert_line(t, "Environment=HOME=%C/berth-home-medium XDG_CACHE_HOME=%C/berth-home-medium");
    /* where a credential is only systemd knows; what looks like one and is none stays */
    static const char *const shown[] = {"/srv/llama-server", "--api-key-file", "{credential:api-key}", "--x={credential:api-key},%d", "{credential:}", "{credential:a b}"};
    in.argv = shown;
    in.n_argv = BASE_COUNT(shown);
    t = render(&in);
    assert_line(t, "ExecStart=/srv/llama-server --api-key-file \"%d/api-key\" \"--x=%d/api-key,%%d\" \"{credential:}\" \"{credential:a b}\"");
    assert_null(strstr(t, "RestartSteps")); /* came with 254 */

    /* a user's manager cannot mount or change accounts */
    of_user.host = &user_host;
    in.service = &of_user;
    t = render(&in);
    assert_line(t, "WantedBy=default.target");
    assert_line(t, "NoNewPrivileges=yes");
    assert_line(t, "LoadCredential=api-key:/etc/berth/a key");
    assert_null(strstr(t, "DynamicUser"));
    assert_null(strstr(t, "ProtectSystem"));
}

static void test_container(void **state)
{
    (void)state;
    static const char *const devices[] = {"/dev/kfd", "/dev/dri"};
    static const char *const said[] = {"/srv/llama-server", "--alias", "100% of $HOME", "a;b", "q\"q\\"};
    struct unit_input in = input(UNIT_CONTAINER);
    static const struct unit_credential key = {.name = "api-key", .path = "/etc/berth/a \"key\" of %n $X"};
    in.argv = said;
    in.n_argv = BASE_COUNT(said);
    in.devices = devices;
    in.n_devices = 2;
    in.credentials = &key;
    in.n_credentials = 1;
    const char *t = render(&in);
    /* the generator reads volumes without quotes, and makes words of systemd's command of them */
    assert_line(t, "Volume=/etc/berth/a \"key\" of %%n $$X:/run/credentials/api-key:ro");
    assert_line(t, "Environment=\"NOTE=50%% of $$X\"");
    assert_line(t, "Environment=HOME=/cache XDG_CACHE_HOME=/cache");
    assert_line(t, "Volume=berth-home-medium-cache:/cache");
    assert_line(t, "Image=example/llama@sha256:00");
    assert_line(t, "ContainerName=berth-home-medium");
    assert_line(t, "Pull=never");
    assert_line(t, "Network=host");
    assert_line(t, "Exec=/srv/llama-server --alias \"100%% of $$HOME\" \"a;b\" \"q\\\"q\\\\\"");
    assert_line(t, "Volume=/var/lib/berth/qwen.gguf:/var/lib/berth/qwen.gguf:ro");
    assert_line(t, "Volume=/home/op/my models/t.jinja:/home/op/my models/t.jinja:ro");
    assert_line(t, "Volume=./berth-home-medium.health:/berth-health:ro");
    assert_line(t, "HealthCmd=/berth-health");
    assert_line(t, "HealthStartPeriod=61s");
    assert_line(t, "AddDevice=/dev/dri");
    assert_line(t, "TimeoutStartSec=61");
    struct err err;
    assert_int_equal(unit_podman_check(str_of(t), (struct unit_version){5, 4}, &err), 0);

    base_autobuf struct buf health = BUF_INIT(4096);
    assert_int_equal(unit_render_health(&in, &health, &err), 0);
    assert_non_null(strstr(health.ptr, "'http://127.0.0.1:7770/health'\n"));
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const broken[] = {"/srv/llama-server", "\xff\xfe"}, *const relative[] = {"llama-server"}, *const colon[] = {"/home/op/a:b"};
    base_autobuf struct buf out = BUF_INIT(65536);
    struct err err;
    struct unit_input in = input(UNIT_SERVICE);
    in.argv = broken;
    in.n_argv = 2;
    assert_int_equal(unit_render(&in, &out, &err), -EINVAL);
    assert_string_equal(err.text, "'\\xff\\xfe' cannot stand in a unit's ExecStart: it is not UTF-8");
    in.argv = relative;
    in.n_argv = 1;
    assert_int_equal(unit_render(&in, &out, &err), -EINVAL);
    in = input(UNIT_SERVICE);
    in.reads = colon;
    in.n_reads = 1;
    assert_int_equal(unit_render(&in, &out, &err), -EINVAL);
    in = input(UNIT_CONTAINER); /* a ';' alone, and an empty word */
    assert_int_equal(unit_render(&in, &out, &err), -EINVAL);
    assert_string_equal(err.text, "word 5 of the command of service 'medium' is ';' alone, which Podman's generator does not hand on: write it otherwise, or make the service 'unit: systemd'");
    static const struct {
        const char *path, *says;
    } keys[] = {
        {"/etc/berth/key ", "which takes no quotes"}, {"/etc/berth/key\\", "which takes no quotes"}, {"/etc/a\nExecStart=/bin/sh", "which takes no quotes"}, {"/etc/\xff", "which takes no quotes"},
        {"/etc/../key", "without '.' and '..'"},      {"key", "must be an absolute path"},
    };
    for (size_t i = 0; i < BASE_COUNT(keys); i++) {
        const struct unit_credential one = {.name = "k", .path = keys[i].path};
        in = input(UNIT_SERVICE);
        in.credentials = &one;
        in.n_credentials = 1;
        buf_clear(&out);
        assert_int_equal(unit_render(&in, &out, &err), -EINVAL);
        assert_non_null(strstr(err.text, keys[i].says));
    }
    in = input(UNIT_CONTAINER);
    in.n_argv = 4;
    in.podman = (struct unit_version){4, 3};
    assert_int_equal(unit_render(&in, &out, &err), -ENOTSUP);
    in.podman = (struct unit_version){5, 4};
    in.image = NULL;
    assert_int_equal(unit_render(&in, &out, &err), -EINVAL);
    struct fleet_service quoting = service;
    quoting.health = "/x'; rm -rf /; '";
    in.service = &quoting;
    assert_int_equal(unit_render_health(&in, &out, &err), -EINVAL);
}

static void test_owner(void **state)
{
    (void)state;
    struct unit_input in = input(UNIT_SERVICE);
    struct unit_owner o, p;
    char first[65536];
    memcpy(first, render(&in), sizeof first);
    assert_true(unit_owner_parse(str_of(first), &o));
    assert_true(str_eq_c(o.fleet, "home"));
    assert_true(str_eq_c(o.service, "medium"));
    assert_int_equal(o.digest.len, 16);
    /* the same input, the same text; another one, another digest */
    assert_string_equal(render(&in), first);
    in.stop_limit_ms++;
    in.stop_limit_ms += 1000;
    assert_true(unit_owner_parse(str_of(render(&in)), &p));
    assert_false(str_eq(o.digest, p.digest));
    assert_false(unit_owner_parse(STR("[Unit]\nDescription=by hand\n# berth: fleet=a service=b digest=0\n"), &o));
    assert_false(unit_owner_parse(STR("# berth: fleet= service=b digest=0\n"), &o));
    assert_false(unit_owner_parse(STR(""), &o));
}

static void test_podman(void **state)
{
    (void)state;
    const struct unit_version v44 = {4, 4}, v54 = {5, 4}, v58 = {5, 8}, unknown = {0, 0};
    assert_true(unit_podman_knows(v54, "Container", "Image"));
    assert_true(unit_podman_knows(v44, "Container", "Image"));
    static const char *const later[] = {"AppArmor", "HttpProxy", "Memory", "ReloadCmd", "ReloadSignal", "Retry", "RetryDelay"};
    for (size_t i = 0; i < BASE_COUNT(later); i++) {
        assert_false(unit_podman_knows(v54, "Container", later[i]));
        assert_true(unit_podman_knows(v58, "Container", later[i]));
        assert_true(unit_podman_knows(unknown, "Container", later[i]));
    }
    assert_false(unit_podman_knows(v58, "Container", "Imag"));
    assert_false(unit_podman_knows(v58, "Pod", "Image"));

    struct err err;
    assert_int_equal(unit_podman_check(STR("# c\n[Container]\nImage=x\nExec=a \\\n  Memory=b\n\n[Service]\nAnything=1\n"), v54, &err), 0);
    assert_int_equal(unit_podman_check(STR("[Container]\nImage=x\nMemory=1G\n"), v54, &err), -ENOTSUP);
    assert_string_equal(err.text, "line 3: podman 5.4 does not know key 'Memory' of [Container]: install a newer podman");
    assert_int_equal(unit_podman_check(STR("[Container]\nno key\n"), v54, &err), -EBADMSG);
    assert_int_equal(unit_podman_check(STR("Image=x\n"), v54, &err), -EBADMSG);
}

static void test_versions(void **state)
{
    (void)state;
    struct unit_version v;
    assert_int_equal(unit_version_parse(STR("systemd 257 (257.13-1~deb13u1)\n+PAM"), &v), 0);
    assert_int_equal(v.major, 257);
    assert_int_equal(v.minor, 0);
    assert_int_equal(unit_version_parse(STR("podman version 5.4.2"), &v), 0);
    assert_int_equal(v.major, 5);
    assert_int_equal(v.minor, 4);
    assert_int_equal(unit_version_parse(STR("no number"), &v), -EBADMSG);
    assert_int_equal(unit_version_parse(STR("99999999999999999999.1"), &v), -EBADMSG);
    assert_int_equal(unit_version_parse(STR(""), &v), -EBADMSG);
}

/* Its text has nothing that changes with the fleet file or with the build: it is not started again for either. */
static void the_router_is_a_unit(void **state)
{
    (void)state;
    static const char *const start[] = {"/var/lib/berth/bin/berth", "route", "--host", "big", "-f", "/s/a b.yaml", NULL}, *const reload[] = {"/var/lib/berth/bin/berth", "reload", NULL};
    const struct unit_router in = {.fleet = "home", .scope = FLEET_SYSTEM, .start = start, .reload = reload};
    base_autobuf struct buf out = BUF_INIT(UNIT_TEXT_MAX);
    struct unit_owner o;
    assert_int_equal(unit_render_router(&in, &out, NULL), 0);
    assert_true(unit_owner_parse(buf_str(&out), &o));
    assert_true(str_eq_c(o.fleet, "home") && str_eq_c(o.service, "router"));
    assert_true(str_ends(buf_str(&out), STR("\n[Service]\nType=notify\nExecStart=/var/lib/berth/bin/berth route --host big -f \"/s/a b.yaml\"\nExecReload=/var/lib/berth/bin/berth reload\nKillMode=mixed\nTimeoutStopSec=45\n"
                                            "Restart=always\nRestartSec=1\nLimitNOFILE=1048576\n\n[Install]\nWantedBy=multi-user.target\n")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quote), cmocka_unit_test(test_service), cmocka_unit_test(test_service_variants), cmocka_unit_test(test_container),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_owner), cmocka_unit_test(test_podman), cmocka_unit_test(test_versions),
        cmocka_unit_test(the_router_is_a_unit),
    };
    return cmocka_run_group_tests_name("unit", tests, NULL, NULL);
}
