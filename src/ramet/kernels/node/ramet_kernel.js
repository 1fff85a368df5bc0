// The node kernel: runs cells in one process and keeps their state; docs/reference/kernels.md is its contract.
// Any node from 16 on. Evaluates to a function, which takes `require` and the number of the channel.
(function (require, channel) {
    'use strict';
    const fs = require('fs');
    const net = require('net');
    const vm = require('vm');
    const util = require('util');
    const crypto = require('crypto');
    const { Worker } = require('worker_threads');

    // Its own names for what it needs of the language: code may put anything in their places.
    const { process, Promise, SharedArrayBuffer, Int32Array, Uint32Array, Map, Set, String, Number, Error, SyntaxError } = globalThis;
    const { parse, stringify } = JSON;
    const { defineProperty, entries, getOwnPropertyDescriptor, getOwnPropertyNames, keys } = Object;
    const { isArray } = Array;
    const { Script } = vm;
    const { isInteger } = Number;
    const { byteLength, concat, from: bufferFrom, isBuffer } = Buffer;
    const { setTimeout } = globalThis;
    const { compareExchange, load, store, wait } = Atomics;
    const { writeSync } = fs;
    const { inspect, types } = util;
    const { reallyExit, rawListeners, on, env } = process;
    const { apply } = Reflect;
    const uncurried = (method) => Function.prototype.call.bind(method);
    const [push, shift, join, sort, splice] = ['push', 'shift', 'join', 'sort', 'splice'].map((one) => uncurried(Array.prototype[one]));
    const [slice, split, endsWith] = ['slice', 'split', 'endsWith'].map((one) => uncurried(String.prototype[one]));
    const [subarray, indexOf] = ['subarray', 'indexOf'].map((one) => uncurried(Buffer.prototype[one]));
    const utf8 = uncurried(Buffer.prototype.toString);
    const then = uncurried(Promise.prototype.then);
    const [contextOfName, keep, drop] = ['get', 'set', 'delete'].map((one) => uncurried(Map.prototype[one]));
    const runHere = uncurried(Script.prototype.runInThisContext);
    const runThere = uncurried(Script.prototype.runInContext);

    const LINE_MAX = 1 << 26;
    const NAME_MAX = 1 << 10;
    const NAMED_MAX = 1 << 8;
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
    let queue = [];
    const contexts = new Map();

    function send(event) {
        try {
            write(channel, `${encoded(event)}\n`);
        } catch {
            apply(reallyExit, process, [0]);
        }
    }

    // JSON.stringify() would ask objects for a toJSON, which they inherit from the code's.
    function encoded(value) {
        if (value === null || typeof value !== 'object') return stringify(value) ?? 'null';
        const parts = [];
        if (isArray(value)) {
            for (let at = 0; at < value.length; at++) push(parts, encoded(value[at]));
            return `[${join(parts, ',')}]`;
        }
        const names = keys(value);
        for (let at = 0; at < names.length; at++) push(parts, `${stringify(names[at])}:${encoded(value[names[at]])}`);
        return `{${join(parts, ',')}}`;
    }

    function write(descriptor, text) {
        const data = bufferFrom(text);
        for (let place = 0; place < data.length; ) {
            try {
                place += writeSync(descriptor, data, place);
            } catch (error) {
                if (error.code !== 'EAGAIN') throw error;
                wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
            }
        }
    }

    // Not through the streams: an interrupt amid a write would leave them waiting for its end for ever.
    function note(text) {
        try {
            write(2, `${text}\n`);
        } catch {
            // the code has closed it
        }
    }

    // Neither an object that cannot be inspected nor one that throws what cannot be, ends the kernel.
    function shown(value) {
        try {
            return inspect(value);
        } catch {
            return '<it could not be inspected>';
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
        if (!contextOfName(contexts, name)) {
            const names = getOwnPropertyNames(globalThis);
            const own = new Set(vm.runInNewContext('Object.getOwnPropertyNames(globalThis)'));
            const globals = {};
            // As they are described: the modules among them are loaded when they are first used.
            for (const one of names.filter((one) => one !== 'global' && (!own.has(one) || one === 'console'))) {
                defineProperty(globals, one, getOwnPropertyDescriptor(globalThis, one));
            }
            const context = vm.createContext(globals);
            replaceRandom(vm.runInContext('Math', context));
            keep(contexts, name, context);
        }
        return contextOfName(contexts, name);
    }

    // What a cell imports stays for later cells; V8 takes import declarations in modules alone.
    function imported(code, node) {
        const name = (one) => (one.type === 'Literal' ? one.raw : one.name);
        const attributes = (node.attributes ?? []).map((one) => `${name(one.key)}: ${one.value.raw}`).join(', ');
        const call = `await import(${node.source.raw}${attributes && `, { with: { ${attributes} } }`})`;
        const picked = [];
        let whole = '';
        for (const one of node.specifiers) {
            if (one.type === 'ImportNamespaceSpecifier') whole = one.local.name;
            else if (one.type === 'ImportDefaultSpecifier') picked.push(`default: ${one.local.name}`);
            else picked.push(`${name(one.imported)}: ${one.local.name}`);
        }
        const names = `{ ${picked.join(', ')} }`;
        const lines = '\n'.repeat(code.slice(node.start, node.end).split('\n').length - 1);
        if (!node.specifiers.length) return `void ${call};${lines}`;
        if (!whole) return `var ${names} = ${call};${lines}`;
        return `var ${whole} = ${call}${picked.length ? `, ${names} = ${whole}` : ''};${lines}`;
    }

    // Declarations at the top level of a cell can be made again by a later one, as in other notebooks.
    function redeclarable(code) {
        let tree;
        try {
            tree = acorn.parse(code, {
                ecmaVersion: 'latest',
                allowAwaitOutsideFunction: true,
                allowHashBang: true,
                allowImportExportEverywhere: true,
            });
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
            } else if (node.type === 'ImportDeclaration') {
                made += code.slice(place, node.start) + imported(code, node);
                place = node.end;
            }
        }
        return made + code.slice(place);
    }

    function prepared(code) {
        if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
            try {
                new Script(`(${code.trim()}\n)`);
                return [`(${code.trim()}\n)`, false];
            } catch {
                // a block
            }
        }
        const source = acorn.parse ? redeclarable(code) : code;
        if (!source.includes('await')) return [source, false];
        if (!processTopLevelAwait) {
            try {
                new Script(source);
                return [source, false];
            } catch {
                return [`(async () => { ${source}\n})()`, true];
            }
        }
        try {
            const waiting = processTopLevelAwait(source);
            return waiting === null ? [source, false] : [waiting, true];
        } catch {
            return [source, false];
        }
    }

    // A cell is told over once, by whatever comes first: its value, what it throws, an exit, an interrupt.
    function run(request) {
        const end = { event: 'done', id: request.id, reason: 'ok', text: null, error: null };
        cells = (cells + 1) & 0x3fffffff || 1;
        const cell = { number: cells, id: request.id, end, waiting: false, over: false };
        current = cell;
        try {
            const [code, waits] = prepared(request.code);
            const script = new Script(code, { filename: `<cell ${cells}>`, importModuleDynamically: importer });
            const context = contextOf(request.context);
            watch.enter(cell);
            const value = context ? runThere(script, context, watch.options) : runHere(script, watch.options);
            if (!waits) return succeed(cell, value);
            cell.waiting = true;
            then(
                value,
                (result) => succeed(cell, wrapped && result !== undefined ? result.value : result),
                (error) => fail(cell, error),
            );
        } catch (error) {
            fail(cell, error);
        }
    }

    function succeed(cell, value) {
        if (cell.over) return;
        cell.waiting = false;
        try {
            if (value !== undefined) show(value, cell.end);
        } catch (error) {
            describe(error, cell.end);
        }
        finish(cell);
    }

    function fail(cell, error) {
        if (cell.over) return;
        cell.waiting = false;
        describe(error, cell.end);
        finish(cell);
    }

    function finish(cell) {
        watch.leave(cell);
        cell.over = true;
        const told = () => {
            current = null;
            watch.renew();
            send({ ...cell.end, epoch });
            next();
        };
        const rest = drained();
        if (rest) then(rest, told, told);
        else told();
    }

    function show(value, end) {
        const text = inspect(value);
        if (text.length > TEXT_MAX) end.truncated = text.length;
        end.text = slice(text, 0, TEXT_MAX);
        const data = richOf(value);
        if (data) emit({ 'text/plain': end.text, ...data }, true);
    }

    function richOf(value) {
        if (value === null || typeof value !== 'object') return null;
        try {
            return typeof value[DISPLAY] === 'function' ? value[DISPLAY]() : null;
        } catch (error) {
            note(`Jupyter.display failed: ${types.isNativeError(error) ? titleOf(error) : shown(error)}`);
            return null;
        }
    }

    function textOf(content) {
        if (isBuffer(content)) return utf8(content, 'base64');
        return typeof content === 'string' ? content : stringify(content) ?? 'null';
    }

    // What is largest is left out until the rest is small enough, as it is sent.
    function emit(data, main) {
        const kept = { __proto__: null };
        const sizes = [];
        let total = 0;
        for (const [mime, content] of entries(data)) {
            kept[mime] = textOf(content);
            const size = byteLength(stringify(kept[mime])) + byteLength(stringify(mime)) - 4;
            push(sizes, { mime, size });
            total += size;
        }
        const event = { event: 'result', id: current && current.id, main, data: kept };
        const dropped = { __proto__: null };
        sort(sizes, (one, other) => other.size - one.size);
        let left = sizes.length;
        let unnamed = 0;
        for (let at = 0; total > DATA_MAX || left > NAMED_MAX; at++, left--) {
            const { mime, size } = sizes[at];
            total -= size;
            if (at < NAMED_MAX) dropped[slice(mime, 0, NAME_MAX)] = kept[mime].length;
            else unnamed += kept[mime].length;
            delete kept[mime];
        }
        if (sizes.length - left > NAMED_MAX) dropped[`${sizes.length - left - NAMED_MAX} more`] = unnamed;
        if (left < sizes.length) event.dropped = dropped;
        send(event);
    }

    function display(value, { raw = false } = {}) {
        emit(raw ? value : { 'text/plain': inspect(value), ...richOf(value) }, false);
    }

    function describe(error, end) {
        end.reason = 'error';
        end.text = null;
        try {
            end.error = { name: 'Uncaught', value: '<it could not be inspected>', traceback: [] };
            if (error instanceof Exit) {
                end.reason = 'exit';
                end.exit_code = error.code & 255;
                end.error = end.exit_code ? { name: 'Exit', value: `${error.code}`, traceback: [] } : null;
            } else if (error && error.code === INTERRUPTED) {
                end.reason = 'interrupted';
                end.error = { name: 'Interrupted', value: '', traceback: [] };
            } else {
                const known = types.isNativeError(error);
                const text = known ? stackOf(error) : `Uncaught ${shown(error)}`;
                const traceback = split(slice(text, 0, TEXT_MAX), '\n');
                if (text.length > TEXT_MAX) push(traceback, `[${text.length - TEXT_MAX} characters more]`);
                end.error = {
                    name: known ? slice(String(error.name), 0, NAME_MAX) : 'Uncaught',
                    value: slice(known ? String(error.message) : shown(error), 0, TEXT_MAX),
                    traceback,
                };
            }
        } catch {
            // getters and traps of the code: it is told without
        }
    }

    function titleOf(error) {
        try {
            return String(error);
        } catch {
            return '<it could not be told>';
        }
    }

    function stackOf(error) {
        const lines = split(String(error.stack || error), '\n');
        for (let at = 0; at < lines.length; at++) {
            if (/^    at .*(<ramet_kernel>|\(node:vm)|^ +at node:vm/.test(lines[at])) return join(splice(lines, 0, at), '\n');
        }
        return join(lines, '\n');
    }

    function drained() {
        try {
            const waiting = [process.stdout, process.stderr].filter((stream) => stream.writableLength);
            if (!waiting.length) return null;
            // A stream that was interrupted amid a write never ends it.
            const late = new Promise((done) => setTimeout(done, 100));
            return Promise.race([late, Promise.all(waiting.map((stream) => new Promise((done) => stream.write('', done))))]);
        } catch {
            return null; // the code has put others in their places
        }
    }

    // --- interrupts -----------------------------------------------------------------------------------------

    // Node's loop hears of a signal once the code that runs has ended. So a thread hears of it: when the loop does not
    // answer, it has the code terminated, as a debugger would. That ends whatever runs, and must not hit the kernel's
    // own code. So the first word of `shared` is the number of the cell whose code may run, 0 while there is none,
    // STOPPED from when the thread has decided on, and ENDED once there was a termination. Nobody leaves a cell that
    // is STOPPED: the termination comes right there.
    const STOPPED = -1;
    const ENDED = -2;
    const LIMITS = { maxYoungGenerationSizeMb: 1, maxOldGenerationSizeMb: 16, stackSizeMb: 1 };
    const THREAD = `
        const { workerData: shared, parentPort } = require('worker_threads');
        process.emitWarning = () => {};
        const { Session } = require('inspector');
        const { Signal } = require('internal/test/binding').internalBinding('signal_wrap');
        let asked = 0;
        const stop = (cell, number) => {
            if (Atomics.load(shared, 1) >= number) return;
            if (Atomics.compareExchange(shared, 0, cell, ${STOPPED}) !== cell) return;
            const session = new Session();
            try {
                session.connectToMainThread();
                session.post('Runtime.terminateExecution', () => {
                    session.disconnect();
                    Atomics.store(shared, 0, ${ENDED});
                    parentPort.postMessage({ ended: true });
                });
            } catch {
                Atomics.store(shared, 0, cell);
            }
        };
        const signal = new Signal();
        signal.onsignal = () => {
            const cell = Atomics.load(shared, 0);
            if (cell <= 0) return;
            asked += 1;
            parentPort.postMessage({ asked, cell });
            setTimeout(stop, 50, cell, asked);
        };
        if (signal.start(2)) throw new Error('no signals');
        parentPort.postMessage({ ready: true });
    `;

    const watch = {
        shared: new Int32Array(new SharedArrayBuffer(8)),
        options: {},
        alone: false,

        start(ready) {
            const failed = () => {
                // Without a thread, node ends the first, synchronous part of a cell, and waits, but nothing else.
                watch.options = { breakOnSigint: true };
                watch.alone = true;
                watch.renew();
                ready();
            };
            try {
                const { emitWarning } = process;
                process.emitWarning = () => {};
                const { internalBinding } = require('internal/test/binding');
                process.emitWarning = emitWarning;
                const { async_hook_fields: fields, constants, clearAsyncIdStack } = internalBinding('async_wrap');
                // Code that is terminated in a callback leaves its number on a stack, over which node would abort.
                fields[constants.kCheck] = 0;
                const thread = new Worker(THREAD, { eval: true, workerData: watch.shared, env: {}, execArgv: ['--expose-internals'], resourceLimits: LIMITS });
                thread.unref();
                thread.once('error', failed);
                thread.on('message', (message) => {
                    if (message.ready) return ready();
                    if (message.asked) {
                        store(watch.shared, 1, message.asked);
                        if (current && current.number === message.cell) interrupted();
                    } else if (compareExchange(watch.shared, 0, ENDED, 0) === ENDED) {
                        clearAsyncIdStack();
                        if (current) fail(current, interruption());
                        read();
                    }
                });
            } catch {
                failed();
            }
        },

        enter(cell) {
            store(watch.shared, 0, cell.number);
        },

        leave(cell) {
            if (compareExchange(watch.shared, 0, cell.number, 0) >= 0) return;
            while (load(watch.shared, 0) === STOPPED);
            store(watch.shared, 0, 0);
        },

        // A handler of the code lasts for its cell.
        renew() {
            if (!watch.alone) return;
            const heard = apply(rawListeners, process, ['SIGINT']);
            for (let at = 0; at < heard.length; at++) if (heard[at] === interrupted) return;
            apply(on, process, ['SIGINT', interrupted]);
        },
    };

    function interruption() {
        return { code: INTERRUPTED };
    }

    function interrupted() {
        if (current && current.waiting) fail(current, interruption());
    }

    // --- requests -------------------------------------------------------------------------------------------

    function forked(request) {
        const errors = [];
        const guarded = (name, duty) => {
            try {
                duty();
            } catch (error) {
                push(errors, slice(`${name}: ${types.isNativeError(error) ? titleOf(error) : shown(error)}`, 0, NAME_MAX));
            }
        };
        epoch = isInteger(request.epoch) ? request.epoch : epoch + 1;
        const seed = isInteger(request.seed) ? request.seed : null;
        guarded('environment', () => {
            if (request.hostname && env.HOSTNAME !== undefined) env.HOSTNAME = request.hostname;
            for (const [name, value] of Object.entries(request.env || {})) {
                if (value === null) delete env[name];
                else env[name] = value;
            }
            env.RAMET_SANDBOX_ID = request.sandbox || '';
            env.RAMET_EPOCH = String(epoch);
        });
        guarded('Math.random', () => seedWith(seed));
        guarded('crypto', renewCrypto);
        const hooks = apply(rawListeners, process, ['forked']); // others than listeners(): `once` takes itself away
        for (let at = 0; at < hooks.length; at++) {
            const { name } = hooks[at].listener || hooks[at];
            guarded(`hook ${name || 'of forked'}`, () => {
                const info = { epoch, sandbox: request.sandbox, hostname: request.hostname, seed };
                const made = apply(hooks[at], process, [info]);
                if (!types.isPromise(made)) return;
                then(made, undefined, uncaught);
                throw new Error('it returned a promise, which nobody awaits');
            });
        }
        send({ event: 'forked', epoch, errors });
    }

    function receive(line) {
        let request;
        try {
            request = parse(line);
            if (typeof request.op !== 'string') throw new SyntaxError('no operation');
        } catch {
            // A line that a fork has cut ends in CAN; others are told.
            if (!endsWith(line, '\x18')) send({ event: 'refused', id: null, message: 'not a request' });
            return;
        }
        if (request.op === 'forked') {
            queue = []; // the parent has read them, and runs them
            forked(request);
        } else {
            push(queue, request);
        }
    }

    function next() {
        while (queue.length && current === null) {
            const request = shift(queue);
            const id = typeof request.id === 'string' ? request.id : null;
            if (request.op === 'ping') {
                send({ event: 'pong', id, epoch });
            } else if (request.op === 'end_context') {
                send({ event: 'context_ended', context: request.context, existed: drop(contexts, request.context) });
            } else if (request.op !== 'run') {
                send({ event: 'refused', id, message: `there is no operation ${slice(request.op, 0, 80)}` });
            } else if (id === null || typeof request.code !== 'string' || typeof (request.context ?? '') !== 'string') {
                send({ event: 'refused', id, message: 'run needs id and code, both text; context is text or null' });
            } else {
                run(request);
            }
        }
    }

    // --- start ----------------------------------------------------------------------------------------------

    delete env.RAMET_CHANNEL;
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
    globalThis.console = Object.assign(
        globalThis.console,
        new console.Console({
            stdout: { write: (text) => write(1, text) },
            stderr: { write: (text) => write(2, text) },
            ignoreErrors: false,
        }),
    );
    function uncaught(error) {
        let exit = false;
        let text = '<it could not be told>';
        try {
            exit = error instanceof Exit;
            text = types.isNativeError(error) ? stackOf(error) : shown(error);
        } catch {
            // getters and traps of the code
        }
        if (!exit) note(`Uncaught ${text}`);
        else if (current && current.waiting) fail(current, error);
    }
    process.on('uncaughtException', uncaught);
    process.on('unhandledRejection', uncaught);

    const socket = new net.Socket({ fd: channel, readable: true, writable: false });
    const chunks = [];
    let gathered = [];
    let size = 0;
    function read() {
        while (chunks.length) {
            const data = shift(chunks);
            let place = 0;
            for (let newline; (newline = indexOf(data, 10, place)) >= 0; place = newline + 1) {
                push(gathered, subarray(data, place, newline));
                const line = size > LINE_MAX ? '' : utf8(concat(gathered));
                gathered = [];
                size = 0;
                if (line) receive(line);
            }
            size += data.length - place;
            if (size <= LINE_MAX) push(gathered, subarray(data, place));
        }
        next();
    }
    socket.on('data', (data) => {
        push(chunks, data);
        const cell = current && current.waiting ? current : null;
        if (cell) watch.leave(cell);
        read();
        if (cell && cell.waiting) watch.enter(cell);
    });
    socket.on('end', () => apply(reallyExit, process, [0]));
    socket.on('error', () => apply(reallyExit, process, [0]));
    // The first import() of a cell would warn of how it is served, once: that is no concern of the code.
    const { emitWarning } = process;
    process.emitWarning = () => {};
    vm.runInThisContext("import('fs')", { importModuleDynamically: importer })
        .catch(() => {})
        .then(() => {
            process.emitWarning = emitWarning;
            watch.start(() => {
                send({ event: 'ready', language: 'node', version: process.versions.node, pid: process.pid });
            });
        });
})
