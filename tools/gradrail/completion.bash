# Completes the commands, flags and choices of gradrail in bash. They come from the help of the program.
_gradrail() {
  local words=("${COMP_WORDS[@]:0:COMP_CWORD}") current=${COMP_WORDS[COMP_CWORD]} path=() word help line candidates
  # Bash divides --model=mlp into three words.
  if [[ $current == = ]]; then current=; elif [[ ${words[-1]} == = ]]; then unset 'words[-1]'; fi
  for word in "${words[@]:1}"; do
    [[ $word == -* ]] && break
    path+=("$word")
  done
  help=$("${COMP_WORDS[0]}" "${path[@]}" --help 2>/dev/null) || return
  if [[ ${words[-1]} == -* ]]; then
    # "  -m,--model TEXT:{mlp,cnn}=mlp"; the description of a flag without a value begins with a small letter.
    line=$(grep -E -- "^  (-[^ ]*,)?${words[-1]}[, ]" <<<"$help")
    if [[ $line =~ ^\ \ [^\ ]+\ +[A-Z]+ ]]; then
      [[ $line =~ ^\ \ [^\ ]+\ +[A-Z]+:\{([^}]*)\} ]] && mapfile -t COMPREPLY < <(compgen -W "${BASH_REMATCH[1]//,/ }" -- "$current")
      return
    fi
  fi
  if [[ $current == -* ]]; then
    candidates=$(sed -nE 's/^  (-[^ ]+).*/\1/p' <<<"$help" | tr , ' ')
  else
    candidates=$(sed -nE '/^Subcommands:/,$ s/^  ([a-z]+).*/\1/p; s/^  [A-Z]+ TEXT:\{(.*)\}.*/\1/p' <<<"$help" | tr , ' ')
  fi
  mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$current")
}
complete -o default -F _gradrail gradrail
