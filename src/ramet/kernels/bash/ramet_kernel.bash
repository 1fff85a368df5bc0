# The bash kernel: one shell that keeps its state; docs/reference/kernels.md is its contract.
#
# It is an interactive shell without a terminal: only such a one outlives `set -u`, ${x:?} and an interrupt. Each
# of those jumps to the top level, where PROMPT_COMMAND is run before the next prompt, and that is the kernel.
# Cells are evaluated at the top level too, not in a function: there `declare` would make local variables.
# So they stand in a loop, which a stray `break` may leave. The second loop catches it, and IGNOREEOF the
# `break 2`.
#
# Under errexit, bash ends itself at an expansion that fails, interactive or not. What is left of an `||` is
# exempt, and an `eval` there leaves the option as the code has set it. There it also takes the trap for ERR
# away, whose conditions are those of errexit: the kernel sets it again in each cell, and it ends the cell.
#
# An expansion that fails discards the command that was parsed, and eval goes on with the next line. So a cell
# is one command where it can be: not where later lines are parsed otherwise because of earlier ones.
#
# Code may have functions and aliases with names of builtins, so that each is called by `builtin`. Only eval is
# not exempt behind that word: that one, and `builtin` itself, are freed of functions before each cell.

# Commands must not hold the channel. Bash has no word for close-on-exec, but it saves with that flag what a
# redirection replaces, above 10, and a copy of such a descriptor has it too.
eval '{
    for __ramet_code in {10..60}; do
        [[ -S /dev/fd/$__ramet_code ]] && exec 250<&"$__ramet_code" && break
    done
} '"$RAMET_CHANNEL>&-"
eval "exec $RAMET_CHANNEL>&-"
exec 249>&9 9>&-
unset -v RAMET_CHANNEL __ramet_source
export -n PROMPT_COMMAND PS1 PS2
set +o history +o histexpand +o monitor -o errtrace
shopt -s execfail
shopt -u checkwinsize
unset -v HISTFILE
IGNOREEOF=100

__ramet_id='' __ramet_abort='' __ramet_status=0 __ramet_epoch=0 __ramet_prefix='' __ramet_code='' __ramet_jumped=0 __ramet_last=0
__ramet_queue=() __ramet_run='' __ramet_trap='' __ramet_whole='' __ramet_stderr=2

__ramet_send() { # one event
    builtin printf '%s\n' "$1" >&250
}

__ramet_quote() { # a JSON string of $1, into __ramet_quoted
    builtin local LC_ALL=C text="$1"
    text=${text//'\'/'\\'}
    text=${text//'"'/'\"'}
    text=${text//$'\n'/'\n'}
    text=${text//$'\t'/'\t'}
    text=${text//$'\r'/'\r'}
    text=${text//[[:cntrl:]]/ }
    __ramet_quoted=\"$text\"
}

__ramet_read() { # the next line, into __ramet_line
    if ((${#__ramet_queue[@]})); then
        __ramet_line=${__ramet_queue[0]}
        __ramet_queue=("${__ramet_queue[@]:1}")
        builtin return 0
    fi
    builtin local status
    while :; do
        IFS= builtin read -r -u 250 __ramet_line && builtin return 0
        status=$?
        ((status > 128)) || builtin exit 0
    done
}

__ramet_split() { # __ramet_line, into __ramet_fields; fails if the line was cut
    builtin local IFS=$'\x1f'
    __ramet_fields=($__ramet_line)
    [[ ${#__ramet_fields[@]} -ge 2 && ${__ramet_fields[-1]} == end ]]
}

__ramet_forked() { # become another than the twin, and tell so; $1: the shell options of the code
    builtin local errors='' name value field hostname
    __ramet_epoch=$((10#${__ramet_fields[1]//[^0-9]/}0 / 10))
    builtin printf -v RAMET_SANDBOX_ID %b "${__ramet_fields[2]}"
    builtin printf -v hostname %b "${__ramet_fields[3]}"
    [[ $hostname ]] && HOSTNAME=$hostname
    RAMET_EPOCH=$__ramet_epoch
    builtin export RAMET_SANDBOX_ID RAMET_EPOCH
    for field in "${__ramet_fields[@]:5:${#__ramet_fields[@]}-6}"; do
        builtin printf -v value %b "$field"
        name=${value%%=*}
        if [[ ! $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]]; then
            errors+=",\"environment: a shell cannot have this name\""
        elif [[ $value != *=* ]]; then
            builtin unset -v "$name" 2>/dev/null || errors+=",\"environment: $name cannot be unset\""
        elif [[ ${!name@a} == *r* ]]; then
            errors+=",\"environment: $name is readonly\""
        else
            builtin declare -gx "$name=${value#*=}"
        fi
    done
    value=${__ramet_fields[4]//[^0-9]/}
    if [[ $value ]]; then
        RANDOM=$(((10#$value) & 0x7fffffff))
    else
        RANDOM=${SRANDOM:-$(od -An -N4 -tu4 /dev/urandom)}
    fi
    if builtin declare -F ramet_on_fork >/dev/null; then
        [[ $1 == *f* ]] || builtin set +f
        ramet_on_fork 2>&"$__ramet_stderr" 248>&- || errors+=",\"hook ramet_on_fork: exit code $?\""
        builtin set -f
    fi
    __ramet_send "{\"event\":\"forked\",\"epoch\":$__ramet_epoch,\"errors\":[${errors#,}]}"
}

__ramet_urgent() { # SIGURG: the sandbox was forked amid a cell; an idle kernel reads of it next anyway
    [[ $__ramet_id && $BASHPID == "$$" ]] || builtin return 0
    builtin local - options="$-" IFS=$' \t\n' __ramet_line __ramet_fields __ramet_stderr=248
    builtin set +eux -f
    while IFS= builtin read -r -t 0 -u 250; do
        IFS= builtin read -r -u 250 __ramet_line || builtin return 0
        if __ramet_split && [[ ${__ramet_fields[0]} == forked ]]; then
            __ramet_forked "$options"
            builtin return 0
        fi
        [[ $__ramet_line == $'\x18' ]] || __ramet_queue+=("$__ramet_line")
    done
}

__ramet_jump() { # end the cell from wherever it is: an interrupt goes to the top level
    __ramet_abort=exit
    __ramet_status=$1
    # Interrupted, bash writes a newline, and does so after it has undone redirections: those but of exec.
    exec 249>&2 2>/dev/null
    builtin kill -INT "$$"
    builtin : # bash looks for interrupts before a command, and at the end of a trap forgets them
}

__ramet_error() { # ERR: with errexit, the cell ends and not the shell; $1 failed
    [[ $- == *e* && $__ramet_id ]] || builtin return 0
    [[ $BASHPID == "$$" ]] || builtin exit "$1"
    __ramet_jump "$1"
}

__ramet_is() { # the exit code $1
    builtin return "$1"
}

__ramet_on_error() { # set the trap for ERR: the code's own comes first
    builtin local run='__ramet_error $?'
    [[ $__ramet_trap ]] && run="__ramet_failed=\$?; __ramet_is \$__ramet_failed
$__ramet_trap
__ramet_error \$__ramet_failed"
    builtin trap "$run" ERR
}

# With the attribute `trace`, a trap for DEBUG that is set in the function outlasts it.
trap() { # what the code sets for ERR must not take the kernel's place
    builtin trap "$@" || builtin return
    [[ $1 == -- ]] && builtin shift
    builtin local action=- signal
    (($# > 1)) && action=$1
    [[ $1 == -[lp]* ]] || for signal; do
        [[ ${signal^^} == ?(SIG)ERR ]] || builtin continue
        [[ $action == - ]] && action=''
        __ramet_trap=$action
        __ramet_on_error
    done
    builtin return 0
}
builtin declare -ft trap

exit() {
    builtin local status="$?"
    (($#)) && status=$1
    [[ $status =~ ^-?[0-9]+$ ]] || { builtin printf 'bash: exit: %s: numeric argument required\n' "$1" >&2; status=2; }
    [[ $BASHPID == "$$" ]] || builtin exit "$status"
    __ramet_jump $((status & 255))
}

__ramet_done() { # tell the end of the cell: reason, exit code, JSON of the error
    __ramet_quote "$__ramet_id"
    __ramet_id='' __ramet_abort=''
    __ramet_send "{\"event\":\"done\",\"id\":$__ramet_quoted,\"reason\":\"$1\",\"text\":null,\"error\":$3,\"epoch\":$__ramet_epoch,\"exit_code\":$2}"
}

__ramet_end() { # after a cell that ended with $1
    builtin trap '' INT
    builtin trap - ERR
    __ramet_options=$-
    builtin set +efuvx
    builtin local IFS=$' \t\n' message='' status="$1" options
    __ramet_prefix=${__ramet_options//[^efuvx]/}
    [[ $__ramet_prefix ]] && __ramet_prefix="set -$__ramet_prefix; "
    __ramet_status=$status
    PROMPT_COMMAND=$__ramet_step
    builtin jobs # interactive, it remembers each command until it was listed
    if [[ ! $__ramet_whole && $status == [12] ]]; then
        # What is parsed depends on this option, and its setting is as it was when the last line was parsed.
        if builtin shopt -q extglob; then options=-O; else options=+O; fi
        message=$("$BASH" "$options" extglob -n <<<"$__ramet_code" 2>&1 >/dev/null) && message=
    fi
    if [[ ! $message ]]; then
        __ramet_done ok "$status" null
    else
        __ramet_quote "${message//"$BASH: "/}"
        __ramet_status=2
        __ramet_done error 2 "{\"name\":\"SyntaxError\",\"value\":$__ramet_quoted,\"traceback\":[$__ramet_quoted]}"
    fi
}

__ramet_prepare() { # __ramet_run, of __ramet_code
    builtin local word
    __ramet_run=$__ramet_code __ramet_whole=yes
    # By these, a line may change how the next one is parsed.
    for word in alias shopt posix POSIX source eval $'\n. '; do
        [[ $'\n'$__ramet_code == *"$word"* ]] && __ramet_whole=''
    done
    if [[ $__ramet_whole ]] && builtin eval "if builtin false; then { $__ramet_code"$'\n}; fi' 2>/dev/null; then
        __ramet_run="{ $__ramet_code"$'\n}'
    else
        __ramet_whole=''
    fi
    # With xtrace, it would be seen. In a list, what fails is no error.
    [[ $__ramet_prefix == *x* ]] || __ramet_run="__ramet_is $__ramet_status && builtin :; $__ramet_run"
    __ramet_run="__ramet_on_error; $__ramet_prefix$__ramet_run"
}

__ramet_next() { # wait for the next cell; one that was left by a jump is told first
    builtin trap '' INT
    builtin trap - ERR
    __ramet_options=$-
    builtin set +euvx -f
    builtin local IFS=$' \t\n'
    if [[ $__ramet_abort ]]; then
        # Otherwise the cell had redirected standard error around the exit, and has it back already.
        [[ /dev/fd/2 -ef /dev/null ]] && exec 2>&249
        exec 249>&-
    fi
    if [[ $__ramet_id ]]; then
        __ramet_prefix=${__ramet_options//[^efuvx]/}
        [[ $__ramet_prefix ]] && __ramet_prefix="set -$__ramet_prefix; "
        PROMPT_COMMAND=$__ramet_step
        if [[ $__ramet_abort ]]; then
            __ramet_done exit "$__ramet_status" null
        elif [[ $__ramet_jumped == 130 ]]; then
            __ramet_status=130
            __ramet_done interrupted 130 '{"name":"Interrupted","value":"","traceback":[]}'
        else
            __ramet_status=0
            [[ $__ramet_jumped == left ]] || __ramet_status=$__ramet_jumped
            __ramet_done ok "$__ramet_status" null
        fi
    fi
    if [[ $__ramet_abort == start ]]; then
        __ramet_quote "$BASH_VERSION"
        __ramet_send "{\"event\":\"ready\",\"language\":\"bash\",\"version\":$__ramet_quoted,\"pid\":$$}"
    fi
    __ramet_abort='' __ramet_jumped=0
    while __ramet_read; do
        __ramet_split || builtin continue
        case ${__ramet_fields[0]}:${#__ramet_fields[@]} in
            run:5)
                builtin printf -v __ramet_id %b "${__ramet_fields[1]}"
                builtin printf -v __ramet_code %b "${__ramet_fields[3]}"
                [[ ! ${__ramet_fields[2]} ]] && __ramet_prepare && builtin break
                __ramet_done error 2 '{"name":"ContextError","value":"bash has no contexts but its own","traceback":[]}'
                ;;
            ping:3)
                builtin printf -v __ramet_line %b "${__ramet_fields[1]}"
                __ramet_quote "$__ramet_line"
                __ramet_send "{\"event\":\"pong\",\"id\":$__ramet_quoted,\"epoch\":$__ramet_epoch}"
                ;;
            end_context:3)
                builtin printf -v __ramet_line %b "${__ramet_fields[1]}"
                __ramet_quote "$__ramet_line"
                __ramet_send "{\"event\":\"context_ended\",\"context\":$__ramet_quoted,\"existed\":false}"
                ;;
            forked:*)
                if ((${#__ramet_fields[@]} >= 6)); then __ramet_forked "$__ramet_prefix"; fi
                ;;
            *) __ramet_send '{"event":"refused","id":null,"message":"not a request"}' ;;
        esac
    done
    builtin set +f
    builtin trap - INT
    __ramet_last=0
    builtin return "$__ramet_status"
}

# All on its second line: lines of a cell are counted from there. What comes after both loops is seen by `break 2` alone.
__ramet_step=$'\n''__ramet_last=$?; [[ $__ramet_jumped == left ]] || __ramet_jumped=$__ramet_last; '
__ramet_step+='while :; do while :; do \unset -f builtin eval exec; __ramet_next; '
__ramet_step+='\eval "$__ramet_run" || __ramet_last=$?; '
__ramet_step+='{ __ramet_end $__ramet_last; } >/dev/null 2>&1; '
__ramet_step+='done; __ramet_jumped=left; done; __ramet_jumped=left'
PROMPT_COMMAND=$__ramet_step

builtin trap '{ __ramet_urgent; } 248>&2 2>/dev/null' URG
# At the top level, nothing of this file is left on the stack, and standard error comes back.
__ramet_abort=start
builtin kill -INT "$$"
