// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.host.Required;

/**
 * Finds the reasoning at the beginning of an answer, between two markers. Whitespace around the
 * reasoning is left out.
 */
final class ReasoningStream implements AnswerStream {

    private enum State {
        BEFORE, // The marker that begins the reasoning may follow.
        BEGINNING, // of the reasoning
        REASONING,
        AFTER, // before the content
        CONTENT
    }

    private final String open;
    private final String close;
    private final ToolCallStream tools; // null if there are none
    private final StringBuilder text = new StringBuilder(); // not handled yet
    private State state;
    private boolean mayBegin; // The model may repeat the marker that the prompt ends with.

    ReasoningStream(String open, String close, ReasoningFormat.Start start, ToolCallStream tools) {
        this.open = open;
        this.close = close;
        this.tools = tools;
        mayBegin = start != ReasoningFormat.Start.ANSWER;
        state =
                switch (start) {
                    case REASONING -> State.BEGINNING;
                    case ANSWER -> State.CONTENT;
                    case EITHER -> State.BEFORE;
                };
    }

    @Override
    public int calls() {
        return tools == null ? 0 : tools.calls();
    }

    @Override
    public boolean isReasoning() {
        return state == State.BEGINNING || state == State.REASONING;
    }

    @Override
    public List<Part> add(String generated) {
        text.append(Required.argument("the text", generated));
        List<Part> parts = new ArrayList<>();
        State before;
        do {
            before = state;
            read(parts);
        } while (state != before);
        return parts;
    }

    private void read(List<Part> parts) {
        switch (state) {
            case BEFORE, BEGINNING -> {
                int blank = blank();
                String rest = text.substring(blank);
                if (mayBegin && rest.startsWith(open)) {
                    text.delete(0, blank + open.length());
                    mayBegin = false;
                    state = State.BEGINNING;
                    read(parts);
                } else if (!mayBegin || !open.startsWith(rest)) {
                    mayBegin = false;
                    boolean reasons = state == State.BEGINNING;
                    text.delete(0, reasons ? blank : 0);
                    state = !reasons ? State.CONTENT : rest.isEmpty() ? state : State.REASONING;
                }
            }
            case REASONING -> {
                int end = text.indexOf(close);
                int held = TextStream.beginningLength(close, text);
                int length = end >= 0 ? end : text.length() - held;
                while (length > 0 && Character.isWhitespace(text.charAt(length - 1))) {
                    length--;
                }
                if (length > 0) {
                    parts.add(Part.reasoning(text.substring(0, length)));
                }
                text.delete(0, end >= 0 ? end + close.length() : length);
                state = end >= 0 ? State.AFTER : state;
            }
            case AFTER -> {
                text.delete(0, blank());
                state = text.isEmpty() ? state : State.CONTENT;
            }
            case CONTENT -> {
                String content = text.toString();
                text.setLength(0);
                if (tools != null) {
                    parts.addAll(tools.add(content));
                } else if (!content.isEmpty()) {
                    parts.add(Part.content(content));
                }
            }
        }
    }

    private int blank() {
        return text.length() - text.toString().stripLeading().length();
    }

    @Override
    public List<Part> end() {
        List<Part> parts = new ArrayList<>();
        if (isReasoning()) {
            String rest = text.toString().stripTrailing();
            if (!rest.isEmpty()) {
                parts.add(Part.reasoning(rest));
            }
            return parts;
        }
        state = state == State.BEFORE ? State.CONTENT : state;
        read(parts);
        if (tools != null) {
            parts.addAll(tools.end());
        }
        return parts;
    }
}
