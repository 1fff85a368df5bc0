// The node kernel: runs cells in one process and keeps their state; docs/reference/kernels.md is its contract.
// Any node from 16 on. Evaluates to a function, which takes `require` and the number of the channel.
(function (require, channel) {
    'use strict';
    const fs = require('fs');
    const net = require('net');
    const vm = require('vm');
    const util = require('util');
    const crypto = require('crypto');

    const FILENAME = '<ramet_kernel>';
    const LINE_MAX = 1 << 26;
    const TEXT_MAX = 1 << 20;
    const DATA_MAX = 1 << 24;
    const INTERRUPTED = 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
    const DISPLAY = Symbol.for('Jupyter.display');
    // The parts of node's own REPL that let a cell await at its top level.
    const inside = (name) => {
        try {
            return require(name);
        } catch {
            return {};
        }
    };
    const acorn = inside('internal/deps/acorn/acorn/dist/acorn');
    const { processTopLevelAwait } = inside('internal/repl/await');
    // Newer versions return what is awaited in an object, so that a promise can be a value.
    const wrapped = Boolean(processTopLevelAwait) && processTopLevelAwait('await 1').includes('value:');
    // Which loader serves import() in a cell has changed over the versions; older ones take a function.
    const importer = (vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER) || ((name) => import(name));

    class Exit {
        constructor(code) {
            this.code = code;
        }
    }

    const fromProcessor = process.execArgv.includes('--openssl-config=/dev/fd/9');
    if (fromProcessor) fs.closeSync(9);
    process.execArgv.length = 0; // child_process.fork() would start children so
    let epoch = 0;
    let cells = 0;
    let current = null; // the cell that runs
    let interrupt = null; // ends the wait for it
    let queue = [];
    const contexts = new Map();

    function send(event) {
        try {
            write(channel, `${JSON.stringify(event)}\n`);
        } catch {
            process.reallyExit(0);
        }
    }

    function write(descriptor, text) {
        const data = Buffer.from(text);
        for (let place = 0; place < data.length; ) {
            try {
                place += fs.writeSync(descriptor, data, place);
            } catch (error) {
                if (error.code !== 'EAGAIN') throw error;
                Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
            }
        }
    }

    // --- random numbers -------------------------------------------------------------------------------------

    // xoshiro128**, by Blackman and Vigna. V8's own generator cannot be seeded while it runs.
    let state = null;

    function draw() {
        const result = Math.imul(rotate(Math.imul(state[1], 5), 7), 9) >>> 0;
        const shifted = state[1] << 9;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = rotate(state[3], 11);
        return result;
    }

    function rotate(value, by) {
        return (value << by) | (value >>> (32 - by));
    }

    function seedWith(seed) {
        const words = Buffer.alloc(16);
        if (seed === null) {
            const source = fs.openSync('/dev/urandom', 'r');
            fs.readSync(source, words, 0, 16, null);
            fs.closeSync(source);
        } else {
            crypto.createHash('sha256').update(String(seed)).digest().copy(words, 0, 0, 16);
        }
        state = new Uint32Array(4);
        for (let i = 0; i < 4; i++) state[i] = words.readUInt32LE(4 * i);
    }

    // From the start, so that a copy of the function that code has taken is this one.
    function replaceRandom(math) {
        const original = math.random;
        const random = () =>
            state === null ? original() : ((draw() >>> 5) * 67108864 + (draw() >>> 6)) / 9007199254740992;
        Object.defineProperty(random, 'name', { value: 'random' });
        math.random = random;
    }

    // OpenSSL cannot be renewed: see how node was started. What node has drawn ahead is used up.
    function renewCrypto() {
        for (let i = 0; crypto.randomUUID && i < 128; i++) crypto.randomUUID();
        for (let i = 0; i < 1024; i++) crypto.randomInt(2);
        if (!fromProcessor) {
            throw new Error('random bytes and keys may repeat those of sibling sandboxes: OpenSSL has no rdrand here');
        }
    }

    // --- cells ----------------------------------------------------------------------------------------------

    function contextOf(name) {
        if (name === null || name === undefined) return null;
        if (!contexts.has(name)) {
            const names = Object.getOwnPropertyNames(globalThis);
            const own = new Set(vm.runInNewContext('Object.getOwnPropertyNames(globalThis)'));
            const globals = {};
            // As they are described: the modules among them are loaded when they are first used.
            for (const one of names.filter((one) => one !== 'global' && (!own.has(one) || one === 'console'))) {
                Object.defineProperty(globals, one, Object.getOwnPropertyDescriptor(globalThis, one));
            }
            const context = vm.createContext(globals);
            replaceRandom(vm.runInContext('Math', context));
            contexts.set(name, context);
        }
        return contexts.get(name);
    }

    // Declarations at the top level of a cell can be made again by a later one, as in other notebooks.
    function redeclarable(code) {
        let tree;
        try {
            tree = acorn.parse(code, { ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowHashBang: true });
        } catch {
            return code; // V8 says it better, or knows more
        }
        let made = '';
        let place = 0;
        for (const node of tree.body) {
            if (node.type === 'VariableDeclaration' && (node.kind === 'const' || node.kind === 'let')) {
                made += `${code.slice(place, node.start)}var${' '.repeat(node.kind.length - 3)}`;
                place = node.start + node.kind.length;
            } else if (node.type === 'ClassDeclaration') {
                made += `${code.slice(place, node.start)}var ${node.id.name} = ${code.slice(node.start, node.end)};`;
                place = node.end;
            }
        }
        return made + code.slice(place);
    }

    function prepared(code) {
        if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
            try {
                new vm.Script(`(${code.trim()}\n)`);
                return [`(${code.trim()}\n)`, false];
            } catch {
                // a block
            }
        }
        const source = acorn.parse ? redeclarable(code) : code;
        if (!source.includes('await')) return [source, false];
        if (!processTopLevelAwait) {
            try {
                new vm.Script(source);
                return [source, false];
            } catch {
                return [`(async () => { ${source}\n})()`, true];
            }
        }
        try {
            const wrapped = processTopLevelAwait(source);
            return wrapped === null ? [source, false] : [wrapped, true];
        } catch {
            return [source, false];
        }
    }

    async function run(request) {
        const cell = { id: request.id };
        const end = { event: 'done', id: cell.id, reason: 'ok', text: null, error: null };
        current = cell;
        cells += 1;
        const exited = new Promise((_, reject) => (interrupt = reject));
        exited.catch(() => {});
        try {
            const [code, waits] = prepared(request.code);
            const script = new vm.Script(code, { filename: `<cell ${cells}>`, importModuleDynamically: importer });
            const context = contextOf(request.context);
            const options = { breakOnSigint: true };
            let value = context ? script.runInContext(context, options) : script.runInThisContext(options);
            if (waits) {
                value = await Promise.race([value, exited]);
                if (wrapped && value !== undefined) value = value.value;
            }
            if (value !== undefined) show(value, end);
        } catch (error) {
            describe(error, end);
        }
        await drained();
        current = interrupt = null;
        send({ ...end, epoch });
        next();
    }

    function show(value, end) {
        const text = util.inspect(value);
        if (text.length > TEXT_MAX) end.truncated = text.length;
        end.text = text.slice(0, TEXT_MAX);
        const data = richOf(value);
        if (data) emit({ 'text/plain': end.text, ...data }, true);
    }

    function richOf(value) {
        if (value === null || typeof value !== 'object' || typeof value[DISPLAY] !== 'function') return null;
        try {
            return value[DISPLAY]();
        } catch (error) {
            process.stderr.write(`Jupyter.display failed: ${error}\n`);
            return null;
        }
    }

    function emit(data, main) {
        const kept = {};
        const dropped = {};
        for (const [mime, content] of Object.entries(data)) {
            const text = Buffer.isBuffer(content)
                ? content.toString('base64')
                : typeof content === 'string'
                  ? content
                  : JSON.stringify(content);
            if (text.length > DATA_MAX) dropped[mime] = text.length;
            else kept[mime] = text;
        }
        const event = { event: 'result', id: current && current.id, main, data: kept };
        if (Object.keys(dropped).length) event.dropped = dropped;
        send(event);
    }

    function display(value, { raw = false } = {}) {
        emit(raw ? value : { 'text/plain': util.inspect(value), ...richOf(value) }, false);
    }

    function describe(error, end) {
        end.reason = 'error';
        if (error instanceof Exit) {
            end.reason = 'exit';
            end.exit_code = error.code & 255;
            end.error = end.exit_code ? { name: 'Exit', value: String(error.code), traceback: [] } : null;
            return;
        }
        if (error && error.code === INTERRUPTED) {
            end.reason = 'interrupted';
            end.error = { name: 'Interrupted', value: '', traceback: [] };
            return;
        }
        const known = util.types.isNativeError(error);
        end.error = {
            name: known ? String(error.name) : 'Uncaught',
            value: known ? String(error.message) : util.inspect(error),
            traceback: (known ? stackOf(error) : `Uncaught ${util.inspect(error)}`).split('\n'),
        };
    }

    function stackOf(error) {
        const lines = String(error.stack || error).split('\n');
        const ours = lines.findIndex((line) => line.startsWith('    at ') && /<ramet_kernel>|\(node:vm|^ +at node:vm/.test(line));
        return (ours < 0 ? lines : lines.slice(0, ours)).join('\n');
    }

    function drained() {
        const waiting = [process.stdout, process.stderr].filter((stream) => stream.writableLength);
        if (!waiting.length) return null;
        // A stream that was interrupted amid a write never ends it.
        const late = new Promise((done) => setTimeout(done, 100));
        return Promise.race([late, Promise.all(waiting.map((stream) => new Promise((done) => stream.write('', done))))]);
    }

    // --- requests -------------------------------------------------------------------------------------------

    function forked(request) {
        const errors = [];
        const guarded = (name, duty) => {
            try {
                duty();
            } catch (error) {
                errors.push(`${name}: ${error}`);
            }
        };
        epoch = Number.isInteger(request.epoch) ? request.epoch : epoch + 1;
        const seed = Number.isInteger(request.seed) ? request.seed : null;
        guarded('environment', () => {
            if (request.hostname && process.env.HOSTNAME !== undefined) process.env.HOSTNAME = request.hostname;
            for (const [name, value] of Object.entries(request.env || {})) {
                if (value === null) delete process.env[name];
                else process.env[name] = value;
            }
            process.env.RAMET_SANDBOX_ID = request.sandbox || '';
            process.env.RAMET_EPOCH = String(epoch);
        });
        guarded('Math.random', () => seedWith(seed));
        guarded('crypto', renewCrypto);
        for (const hook of process.listeners('forked')) {
            guarded(`hook ${hook.name || 'of forked'}`, () => hook({ epoch, sandbox: request.sandbox, hostname: request.hostname, seed }));
        }
        send({ event: 'forked', epoch, errors });
    }

    function receive(line) {
        let request;
        try {
            request = JSON.parse(line);
            if (typeof request.op !== 'string') throw new SyntaxError('no operation');
        } catch {
            // A line that a fork has cut ends in CAN; others are told.
            if (!line.endsWith('\x18')) send({ event: 'refused', id: null, message: 'not a request' });
            return;
        }
        if (request.op === 'forked') {
            queue = []; // the parent has read them, and runs them
            forked(request);
        } else {
            queue.push(request);
        }
    }

    function next() {
        while (queue.length && current === null) {
            const request = queue.shift();
            const id = typeof request.id === 'string' ? request.id : null;
            if (request.op === 'ping') {
                send({ event: 'pong', id, epoch });
            } else if (request.op === 'end_context') {
                send({ event: 'context_ended', context: request.context, existed: contexts.delete(request.context) });
            } else if (request.op !== 'run') {
                send({ event: 'refused', id, message: `there is no operation ${request.op.slice(0, 80)}` });
            } else if (id === null || typeof request.code !== 'string' || !['string', 'undefined'].includes(typeof (request.context ?? undefined))) {
                send({ event: 'refused', id, message: 'run needs id and code, both text; context is text or null' });
            } else {
                run(request);
            }
        }
    }

    // --- start ----------------------------------------------------------------------------------------------

    delete process.env.RAMET_CHANNEL;
    replaceRandom(Math);
    Object.defineProperty(globalThis, 'display', { value: display, writable: true, configurable: true });
    // `const crypto = require('crypto')` must not meet a global that cannot be assigned.
    for (const [name, { get, set, configurable }] of Object.entries(Object.getOwnPropertyDescriptors(globalThis))) {
        if (!get || set || !configurable) continue;
        Object.defineProperty(globalThis, name, {
            get,
            set: (value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: true }),
            configurable: true,
        });
    }
    process.exit = (code) => {
        throw new Exit(Number(code === undefined ? process.exitCode || 0 : code) || 0);
    };
    for (const stream of [process.stdout, process.stderr]) {
        if (stream._handle && stream._handle.setBlocking) stream._handle.setBlocking(true);
    }
    // Not through the streams: an interrupt amid a write would leave them waiting for its end for ever.
    globalThis.console = Object.assign(
        globalThis.console,
        new console.Console({
            stdout: { write: (text) => write(1, text) },
            stderr: { write: (text) => write(2, text) },
            ignoreErrors: false,
        }),
    );
    const uncaught = (error) => {
        if (error instanceof Exit) {
            if (interrupt) interrupt(error);
        } else {
            process.stderr.write(`Uncaught ${util.types.isNativeError(error) ? stackOf(error) : util.inspect(error)}\n`);
        }
    };
    process.on('uncaughtException', uncaught);
    process.on('unhandledRejection', uncaught);
    process.on('SIGINT', () => {
        if (interrupt) interrupt(Object.assign(new Error('interrupted'), { code: INTERRUPTED }));
    });

    const socket = new net.Socket({ fd: channel, readable: true, writable: false });
    let gathered = [];
    let size = 0;
    socket.on('data', (data) => {
        let place = 0;
        for (let newline; (newline = data.indexOf(10, place)) >= 0; place = newline + 1) {
            gathered.push(data.subarray(place, newline));
            const line = size > LINE_MAX ? '' : Buffer.concat(gathered).toString();
            gathered = [];
            size = 0;
            if (line) receive(line);
        }
        size += data.length - place;
        if (size <= LINE_MAX) gathered.push(data.subarray(place));
        next();
    });
    socket.on('end', () => process.reallyExit(0));
    socket.on('error', () => process.reallyExit(0));
    // The first import() of a cell would warn of how it is served, once: that is no concern of the code.
    const { emitWarning } = process;
    process.emitWarning = () => {};
    vm.runInThisContext("import('fs')", { importModuleDynamically: importer })
        .catch(() => {})
        .then(() => {
            process.emitWarning = emitWarning;
            send({ event: 'ready', language: 'node', version: process.versions.node, pid: process.pid });
        });
})
