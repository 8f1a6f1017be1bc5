# SPDX-License-Identifier: MIT
"""Which flags each file meets. A cell is {program, devices, file, flags, draft, mmproj}: program "tool" is llama-fit-params, "fit" the fit of llama-server, "run" a server that really starts."""
import os

# Of llama-fit-params: devices, flags.
TOOL = [
    (0, '-c 4096 -np 2'),
    (2, '-c 4096 -np 2 -ts 1,1'),
    (1, '-c 4096 -np 1'),
    (2, '-c 3000 -np 3 -ts 4,6 -ub 96'),
    (2, '-c 2048 -np 1 -ts 3,1 --swa-full'),
    (2, '-c 4096 -np 4 -ngl 1 -ts 1,1'),
    (2, '-c 8192 -np 2 -nkvo -ts 1,1 -ub 128'),
    (0, '-c 4096 -np 2 -ctk q8_0 -ctv q8_0'),
    (2, '-c 4096 -np 1 -ctk q8_0 -ctv q4_0 -fa on -ts 1,1'),
    (0, '-c 4096 -np 2 -fa off'),
    (2, '-c 4096 -np 1 -fa off -ctk f32 -ctv bf16 -ts 2,1'),
    (0, '-c 0 -np 1'),
    (2, '-c 7777 -np 5 -ts 7,3 -ub 100 -ctk bf16 -ctv f32 -nr'),
    (2, '-c 1300 -np 2 -ngl 2 -ts 1,2 -ctk q5_1 -ctv q5_1'),
    (2, '-c 16384 -np 4 -ts 1,0 -ub 512 -b 1024'),
    (0, '-c 1000 -np 3 -ub 99 -nr'),
]
# Of the server's own fit: unified KV is the server's default and not known to llama-fit-params.
FIT = [
    (2, '-c 4096 -ts 1,1'),
    (0, '-c 8192 -np 3 -kvu -ub 99'),
    (2, '-c 16384 -np 2 -kvu -ts 1,1 --swa-full -ub 1024'),
    (2, '-c 8192 -np 4 -kvu -ts 2,3 -ub 64 -ctk q4_0 -ctv q4_0'),
]
# Of a server that loads the weights.
RUN = [
    (2, '-c 4096 -np 2 -ts 1,1 -lm none'),
    (0, '-c 2048 -lm none'),
]
# Where tensors are moved by hand.
OVERRIDES = [
    (2, '-c 2048 -np 1 -ts 1,1 -cmoe'),
    (2, '-c 2048 -np 1 -ts 1,1 -ncmoe 1'),
    (2, '-c 2048 -np 1 -ts 1,1 -ot blk\\.0\\.ffn=CPU,blk\\.1\\.attn=D0'),
    (2, '-c 2048 -np 1 -ts 1,1 -ot token_embd=D1,output\\.weight=CPU'),
    (2, '-c 2048 -np 1 -ts 1,0 -ot ffn_.*=D1'),
    (2, '-c 2048 -np 1 -ts 1,0 -ot blk\\.1\\.attn=D1'),
    (2, '-c 2048 -np 1 -ts 1,0 -ot token_embd=D1'),
    (0, '-c 2048 -np 1 -ot ffn_.*=CPU'),
]
FULL = [
    (0, '-c 8192 -np 1'),
    (2, '-c 32768 -np 2 -ts 1,1'),
    (2, '-c 131072 -np 4 -ts 3,2 -ub 1024 -ctk q8_0 -ctv q8_0'),
    (2, '-c 65536 -np 1 -ts 36,29 -ub 256 -fa off'),
    (2, '-c 16384 -np 2 -ts 1,1 -ngl 20 -nkvo'),
    (0, '-c 0 -np 1 -nr'),
]
FULL_FIT = [
    (2, '-c 262144 -np 2 -ts 36,29 -b 6144 -ub 1536'),
    (2, '-c 262144 -ts 1,1'),
    (2, '-c 65536 -np 3 -kvu -ts 2,1 -ub 96 -cmoe'),
]
FULL_SIZE = ['llama-70b', 'qwen3-235b', 'gemma3-27b', 'deepseek-671b', 'qwen35-35b-a3b', 'qwen38-27b', 'qwen38-flash-next-00001-of-00006', 'gemma4-12b']
# Drafters of their own file: target, drafter, kind.
DRAFTERS = [
    ('rope-llama', 'tied-llama', 'draft-simple'),
    ('hybrid-qwen35-default', 'tied-llama', 'draft-simple'),
    ('rope-llama', 'swa-gemma3-default', 'draft-simple'),
    ('rope-llama', 'hybrid-qwen35-default', 'draft-simple'),
    ('rope-llama', 'drafter-eagle3', 'draft-eagle3'),
    ('hybrid-qwen35-default', 'drafter-eagle3', 'draft-eagle3'),
    ('rope-llama', 'drafter-dflash', 'draft-dflash'),
    ('rope-llama', 'drafter-dflash-window', 'draft-dflash'),
    ('rope-llama', 'drafter-dflash2', 'draft-dflash'),
    ('hybrid-qwen35-default', 'drafter-dflash', 'draft-dflash'),
    ('hybrid-qwen35-default', 'drafter-dflash-window', 'draft-dflash'),
    ('hybrid-qwen35-default', 'drafter-dflash2', 'draft-dflash'),
    ('rope-llama', 'drafter-dspark', 'draft-dspark'),
    ('hybrid-qwen35-default', 'drafter-dspark', 'draft-dspark'),
    ('gemma4-shared', 'drafter-gemma4-assistant', 'draft-mtp'),
]
DRAFT_FLAGS = [
    (0, '-c 4096 -np 2 -lm none'),
    (2, '-c 4096 -np 1 -ts 3,1 -lm none'),
    (2, '-c 8192 -ts 1,1 -lm none -ctk q8_0 -ctv q8_0 --spec-draft-n-max 5'),
    (2, '-c 4096 -np 2 -kvu -ts 1,1 -lm none -ctkd q8_0 -ctvd q8_0 -ub 128'),
    (2, '-c 4096 -np 3 -ts 1,1 -lm none -ngl 2 -ngld 0 -ub 99'),
]
MTP_FLAGS = [
    (0, '-c 4096 -np 2 -lm none'),
    (2, '-c 4096 -ts 1,1 -lm none'),
    (2, '-c 4096 -np 2 -ts 3,1 -lm none -ctkd q8_0 -ctvd q8_0 --spec-draft-n-max 1'),
]
MTP = ['nextn-glm4moe', 'nextn-glm4moe-bare', 'nextn-glm4moe-two', 'nextn-deepseek2', 'nextn-deepseek32', 'nextn-glm-dsa', 'nextn-hy_v3', 'nextn-mimo2', 'nextn-cohere2moe', 'nextn-qwen35', 'nextn-qwen35moe', 'nextn-qwen3next', 'nextn-bailingmoe3',
       'nextn-glm4', 'nextn-exaone4']
NGRAM = ['ngram-simple', 'ngram-map-k', 'ngram-mod', 'ngram-cache']

SAMPLE_FILES = ['llama-dense', 'gemma3-dense', 'qwen35-dense', 'deepseek32-moe', 'deepseek4-moe', 'qwen4exp-moe', 'falcon-h1-dense', 'lfm2-dense', 'minimax-m3-moe', 'mamba2-dense', 'openelm-dense', 'nemotron_h-dense']

# Compute buffers are measured for the first point, as `berth fit --measure` does it (from half its ubatch and context on), and compared with the engine at points between: ubatch, context.
LEARN_RANGE = '0,0,0,0'
LEARN_POINTS = [(512, 32768), (320, 20480), (448, 28672), (300, 30720)]
LEARN_FILES = ['llama-70b', 'qwen3-235b', 'gemma3-27b', 'deepseek-671b', 'qwen35-35b-a3b', 'qwen38-27b', 'qwen38-flash-next-00001-of-00006', 'gemma4-12b']
LEARN_FIXTURES = ['llama-dense', 'gemma3-dense', 'qwen35-dense', 'mamba2-dense', 'gpt-oss-moe', 'deepseek2-moe']
LEARN_FLAGS = [(2, '-np 2 -ts 3,2'), (0, '-np 1 -nr'), (2, '-np 4 -kvu -ts 1,1 -ctk q8_0 -ctv q8_0')]
LEARN_SPEC = [('qwen38-27b', 2, '-np 2 -ts 36,29 --spec-type draft-mtp')]


def learn_cells(fixtures, models):
    """Cells of the comparison after measuring."""
    out = []
    todo = [(os.path.join(models, f + '.gguf'), d, x) for f in LEARN_FILES for d, x in LEARN_FLAGS]
    todo += [(os.path.join(fixtures, f + '.gguf'), d, x) for f in LEARN_FIXTURES if fixtures for d, x in LEARN_FLAGS[:2]]
    todo += [(os.path.join(models, f + '.gguf'), d, x) for f, d, x in LEARN_SPEC]
    for path, devices, flags in todo:
        name = '%s:%d:%s' % (os.path.basename(path), devices, flags.replace('=', ''))
        for ub, context in LEARN_POINTS:
            if os.path.exists(path):
                program, more = ('run', ' -lm none') if os.path.dirname(path) != models.rstrip('/') else ('fit', '')
                out += _cells(program, path, [(devices, '-c %d %s -ub %d%s' % (context, flags, ub, more))], learn='%s=%s' % (name, LEARN_RANGE))
    return out


def _cells(program, path, settings, **more):
    return [dict(program=program, devices=d, file=path, flags=f.split(), **more) for d, f in settings]


def _draft_cells(models):
    def path(n):
        return os.path.join(models, n + '.gguf')
    out = []
    for target, drafter, kind in DRAFTERS:
        out += _cells('run', path(target), [(d, f + ' --spec-type ' + kind) for d, f in DRAFT_FLAGS], draft=path(drafter))
    for n in MTP:
        out += _cells('run', path(n), [(d, f + ' --spec-type draft-mtp') for d, f in MTP_FLAGS])
    for kind in NGRAM:
        out += _cells('run', path('rope-llama'), [(2, '-c 4096 -np 2 -ts 1,1 -lm none --spec-type ' + kind)])
    out += _cells('run', path('swa-gemma3-default'), [(d, f) for d, f in RUN] + [(2, '-c 4096 -np 1 -ts 1,1 -lm none --no-mmproj-offload')], mmproj=path('projector-gemma3'))
    return out


def cells(fixtures, models, sample):
    """All of the grid, or about a minute of it."""
    out = []
    small = []
    if fixtures:
        small += sorted(os.path.join(fixtures, f) for f in os.listdir(fixtures) if f.endswith('.gguf'))
    hand = sorted(f for f in os.listdir(models) if f.endswith('.gguf') and not f.startswith(('drafter', 'projector')) and ('-of-' not in f or '-00001-of-' in f))
    full = [f + '.gguf' for f in FULL_SIZE]
    small += [os.path.join(models, f) for f in hand if f not in full and not f.startswith(('qwen38-', 'gemma4-12b'))]
    for path in small:
        name = os.path.basename(path)[:-5]
        if sample and fixtures and os.path.dirname(path) == fixtures.rstrip('/') and name not in SAMPLE_FILES:
            continue
        tool, fit, run = (TOOL[:2], FIT[:1], []) if sample else (TOOL, FIT, RUN)
        if sample and os.path.dirname(path) != (fixtures or '').rstrip('/'):
            tool, fit = TOOL[1:2], []
        out += _cells('tool', path, tool) + _cells('fit', path, fit) + _cells('run', path, run)
        if not sample and ('moe' in name or name in ('llama-dense', 'rope-llama', 'gemma3-dense', 'gemma4-shared') or name.startswith('quant')):
            out += _cells('tool', path, OVERRIDES)
    for f in full:
        path = os.path.join(models, f)
        out += _cells('tool', path, FULL[1:2] if sample else FULL) + _cells('fit', path, FULL_FIT[:1] if sample else FULL_FIT)
    draft = _draft_cells(models)
    out += draft[1::5] if sample else draft
    return [c for c in out if os.path.exists(c['file'])]
