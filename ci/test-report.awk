# Reads surefire's XML reports, prints the failed tests, and one table: tests, passed, failed and skipped by reason, per module
# and in all. Exits with 1 if a test failed. Modules appear in the order of their files.
#   awk -v root=DIRECTORY/ -f ci/test-report.awk DIRECTORY/MODULE/target/surefire-reports/TEST-*.xml
# Plain POSIX awk. surefire writes each element on a line of its own, and line feeds in attributes as &#10;.

BEGIN {
  MESSAGE_LINES = 12 # of a failure
  OUTPUT_LINES = 40 # of what a failed test printed
}

FNR == 1 {
  module = substr(FILENAME, length(root) + 1)
  sub(/\/target\/.*/, "", module)
  if (!(module in tests)) modules[++moduleCount] = module
  tests[module] += 0
  state = ""
}

# Output of tests is not parsed: it may look like XML.
state == "output" {
  if (failure) keep($0)
  if (index($0, "]]></system-")) endOutput()
  next
}

/<system-(out|err)>/ {
  state = "output"
  line = $0
  sub(/.*<system-(out|err)>(<!\[CDATA\[)?/, "", line)
  if (failure) keep(line)
  if (index($0, "</system-")) endOutput()
  next
}

/<testsuite / { seconds[module] += number(attribute($0, "time")) }

/<testcase / {
  tests[module]++
  className = attribute($0, "classname")
  name = attribute($0, "name")
  failure = 0
}

/<skipped/ {
  reason = attribute($0, "message")
  if (reason == "") {
    reason = $0
    sub(/.*<!\[CDATA\[/, "", reason)
    sub(/\]\]>.*/, "", reason)
  }
  skip(shortReason(decode(reason)))
}

/<(failure|error)[ >]/ {
  failed[module]++
  allFailed++
  failure = 1
  printf "FAILED %s: %s%s (%s s)\n", module, className, name == "" ? "" : "." decode(name), attribute(testcase, "time")
  state = "failure"
  printed = 0
  line = $0
  sub(/.*<!\[CDATA\[/, "", line)
  if (line == $0) sub(/.*<(failure|error)[^>]*>/, "", line)
  printFailure(line)
  if (index($0, "</failure>") || index($0, "</error>")) state = ""
  next
}

state == "failure" {
  printFailure($0)
  if (index($0, "</failure>") || index($0, "</error>")) state = ""
}

/<testcase / { testcase = $0 }

/<\/testcase>/ { failure = 0 }

END {
  if (moduleCount > 0) printTable()
  exit allFailed > 0
}

function attribute(line, key,    start) {
  if (!match(line, " " key "=\"[^\"]*\"")) return ""
  start = RSTART + length(key) + 3
  return substr(line, start, RLENGTH - length(key) - 4)
}

function number(text) {
  gsub(",", "", text)
  return text + 0
}

function decode(text) {
  gsub(/&#10;/, " ", text)
  gsub(/&lt;/, "<", text)
  gsub(/&gt;/, ">", text)
  gsub(/&quot;/, "\"", text)
  gsub(/&apos;/, "'", text)
  gsub(/&amp;/, "\\&", text)
  return text
}

# Without exception classes, prefixes and remedies, so that one cause is one row.
function shortReason(reason) {
  while (sub(/^([A-Za-z0-9_$]+\.)+[A-Za-z0-9_$]+(Exception|Error): /, "", reason) || sub(/^Assumption failed: /, "", reason) ||
    sub(/^CUDA: /, "", reason)) continue
  sub(/;.*/, "", reason)
  if (length(reason) > 60) sub(/: .*/, "", reason)
  return reason == "" ? "no reason given" : reason
}

function skip(reason) {
  if (!(reason in known)) {
    known[reason] = 1
    reasons[++reasonCount] = reason
  }
  skipped[module]++
  skippedBy[module, reason]++
}

function printFailure(line) {
  sub(/\]\]>.*/, "", line)
  sub(/<\/(failure|error)>.*/, "", line)
  if (line != "" && printed++ < MESSAGE_LINES) print "    " decode(line)
}

function keep(line) {
  sub(/\]\]><\/system-.*/, "", line)
  sub(/<\/system-.*/, "", line)
  # XML has no control characters: surefire writes them as references.
  gsub(/&amp#27;\[[0-9;]*m/, "", line)
  if (line != "") output[++outputCount] = line
}

function endOutput(    i, first) {
  state = ""
  if (failure && outputCount > 0) {
    first = outputCount > OUTPUT_LINES ? outputCount - OUTPUT_LINES + 1 : 1
    print "  printed" (first > 1 ? ", the last " OUTPUT_LINES " of " outputCount " lines" : "") ":"
    for (i = first; i <= outputCount; i++) print "    " output[i]
  }
  outputCount = 0
}

function printTable(    i, j, m, width, label) {
  width = 8
  for (j = 1; j <= reasonCount; j++) {
    label = "skipped: " reasons[j]
    labels[j] = label
    if (length(label) > width) width = length(label)
  }
  printf "%-" width "s", ""
  for (i = 1; i <= moduleCount; i++) printf "  %s", modules[i]
  print "     all"
  row("tests", width, tests)
  for (i = 1; i <= moduleCount; i++) {
    m = modules[i]
    passed[m] = tests[m] - failed[m] - skipped[m]
  }
  row("passed", width, passed)
  row("failed", width, failed)
  for (j = 1; j <= reasonCount; j++) {
    for (i = 1; i <= moduleCount; i++) cells[modules[i]] = skippedBy[modules[i], reasons[j]]
    row(labels[j], width, cells)
  }
  for (i = 1; i <= moduleCount; i++) seconds[modules[i]] = int(seconds[modules[i]] + 0.5)
  row("seconds in tests", width, seconds)
}

function row(label, width, cells,    i, sum) {
  printf "%-" width "s", label
  for (i = 1; i <= moduleCount; i++) {
    printf "  %*d", length(modules[i]), cells[modules[i]]
    sum += cells[modules[i]]
  }
  printf "  %6d\n", sum
}
