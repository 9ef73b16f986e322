// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.djlx.nativeops.host.Required;

/**
 * Finds calls of tools in an answer while it is generated. A call of a tool that does not exist, or
 * without a name, stays content.
 */
public final class ToolCallStream implements AnswerStream {

    private final ToolFormat format;
    private final Set<String> names;
    private final StringBuilder text = new StringBuilder(); // not handled yet
    private final StringBuilder held = new StringBuilder(); // of a call whose name is not known
    private boolean inCalls; // after a marker
    private CallReader call; // null outside of a call
    private boolean started; // content or a call was found
    private int calls;

    /**
     * {@code names} are those of the tools; {@code forced}: the prompt has the text that begins the
     * calls.
     */
    public ToolCallStream(ToolFormat format, Set<String> names, boolean forced) {
        this.format = Required.argument("ToolCallStream: format", format);
        this.names = Required.argument("ToolCallStream: names", names);
        inCalls = forced && !format.promptSuffix().isEmpty();
        started = inCalls;
    }

    @Override
    public int calls() {
        return calls;
    }

    @Override
    public List<Part> add(String generated) {
        text.append(Required.argument("the text", generated));
        List<Part> parts = new ArrayList<>();
        while (call != null ? readCall(parts) : inCalls ? readBetween(parts) : readText(parts)) {
            // Each step handles some text and says whether the next one may.
        }
        return parts;
    }

    @Override
    public List<Part> end() {
        List<Part> parts = new ArrayList<>();
        addContent(held.toString() + text, parts);
        held.setLength(0);
        text.setLength(0);
        return parts;
    }

    private void addContent(String content, List<Part> parts) {
        if (!content.isEmpty() && !(calls > 0 && content.isBlank())) {
            started = true;
            parts.add(Part.content(content));
        }
    }

    private String take(int length) {
        String taken = text.substring(0, length);
        text.delete(0, length);
        return taken;
    }

    private boolean readText(List<Part> parts) {
        int blank = text.length() - text.toString().stripLeading().length();
        boolean startsWithCall = format == ToolFormat.LLAMA3 && !started;
        if (startsWithCall && blank < text.length() && text.charAt(blank) == '{') {
            held.append(take(blank));
            inCalls = true;
            return true;
        }
        int found = text.indexOf(format.marker());
        if (found >= 0) {
            addContent(take(found), parts);
            held.append(take(format.marker().length()));
            inCalls = true;
            return true;
        }
        int kept = (startsWithCall || calls > 0) && blank == text.length() ? blank : 0;
        kept = Math.max(kept, TextStream.beginningLength(format.marker(), text));
        addContent(take(text.length() - kept), parts);
        return false;
    }

    /** Reads what stands between calls: whitespace, separators, brackets and the end of a tag. */
    private boolean readBetween(List<Part> parts) {
        String end = "</tool_call>";
        while (text.length() > 0) {
            char c = text.charAt(0);
            if (c == '{') {
                call = new CallReader();
                return true;
            }
            boolean isTag = format == ToolFormat.HERMES && c == '<';
            if (isTag && text.length() < end.length() && end.startsWith(text.toString())) {
                return false;
            }
            if (isTag && text.toString().startsWith(end)
                    || c == ']' && format == ToolFormat.MISTRAL) {
                take(isTag ? end.length() : 1);
                held.setLength(0);
                inCalls = false;
                return true;
            }
            boolean separates =
                    Character.isWhitespace(c)
                            || c == (format == ToolFormat.LLAMA3 ? ';' : ',')
                            || c == '[' && format == ToolFormat.MISTRAL;
            if (!separates) { // Not a call.
                addContent(held.toString(), parts);
                held.setLength(0);
                inCalls = false;
                started = true;
                addContent(take(1), parts);
                return true;
            }
            held.append(take(1));
        }
        return false;
    }

    private boolean readCall(List<Part> parts) {
        int used = 0;
        StringBuilder arguments = new StringBuilder();
        boolean known = call.isKnown;
        while (used < text.length() && !call.ended) {
            call.read(text.charAt(used++), arguments);
        }
        String read = take(used);
        if (!known && call.name != null && names.contains(call.name)) {
            call.isKnown = true;
            started = true;
            held.setLength(0);
            parts.add(Part.call(calls++, format.newId(), call.name, ""));
            arguments.insert(0, call.early);
        } else if (!known) {
            call.early.append(arguments);
            held.append(read);
            if (call.ended || call.name != null) {
                addContent(held.toString(), parts);
                held.setLength(0);
                call = null;
                inCalls = false;
                return true;
            }
            return false;
        }
        if (call.ended && !call.hasArguments) {
            arguments.append("{}");
        }
        if (arguments.length() > 0) {
            parts.add(Part.call(calls - 1, null, null, arguments.toString()));
        }
        boolean ended = call.ended;
        call = ended ? null : call;
        return ended;
    }

    /** Reads the JSON object of a call, character by character. */
    private static final class CallReader {

        private final StringBuilder early = new StringBuilder(); // arguments before the name
        private final StringBuilder token = new StringBuilder(); // a key, or the name
        private String key; // null while a key is expected
        private String name;
        private int depth;
        private boolean inString;
        private boolean escaped;
        private boolean hasArguments;
        private boolean inArguments;
        private boolean isText; // the arguments are a string that holds JSON
        private boolean isKnown;
        private boolean ended;

        /** Reads a character. Appends those of the arguments. */
        void read(char c, StringBuilder arguments) {
            boolean wasInString = inString;
            if (inString) {
                inString = escaped || c != '"';
                escaped = !escaped && c == '\\';
            } else if (c == '"') {
                inString = true;
            } else if (c == '{' || c == '[') {
                if (depth++ == 0) {
                    return;
                }
            } else if (c == '}' || c == ']') {
                depth--;
            }
            boolean isTop = depth == 1 && !wasInString && !inString;
            if (depth == 0 || isTop && c == ',') {
                inArguments = false;
                key = null;
                ended = depth == 0;
                token.setLength(0);
            } else if (isTop && c == ':' && key == null) {
                key = unquote(token.toString());
                token.setLength(0);
                inArguments = key.equals("arguments") || key.equals("parameters");
                hasArguments |= inArguments;
            } else if (inArguments) {
                readArguments(c, wasInString, arguments);
            } else {
                token.append(c);
                if (depth == 1 && wasInString && !inString && "name".equals(key)) {
                    name = unquote(token.toString());
                }
            }
        }

        private void readArguments(char c, boolean wasInString, StringBuilder arguments) {
            if (!isText && token.isEmpty() && arguments.isEmpty() && depth == 1) {
                isText = c == '"';
            }
            if (isText) {
                token.append(c);
                if (wasInString && !inString) {
                    arguments.append(unquote(token.toString()));
                    isText = false;
                    inArguments = false;
                }
            } else if (depth > 1 || wasInString || !Character.isWhitespace(c)) {
                arguments.append(c);
            }
        }

        private static String unquote(String json) {
            try {
                return JsonParser.parseString(json.strip()).getAsString();
            } catch (JsonParseException | UnsupportedOperationException | IllegalStateException e) {
                return json;
            }
        }
    }
}
