// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.djlx.nativeops.host.Required;

/**
 * Divides an answer of GPT-OSS, which is messages in the <a
 * href="https://github.com/openai/harmony">harmony format</a>: the channel {@code analysis} is
 * reasoning, a message to {@code functions.NAME} is a call of a tool, anything else is content.
 */
final class ChannelStream implements AnswerStream {

    static final String CHANNEL = "<|channel|>";
    static final String MESSAGE = "<|message|>";
    private static final String START = "<|start|>";
    private static final Set<String> ENDS = Set.of("<|end|>", "<|call|>", "<|return|>");

    static final List<String> MARKERS =
            List.of(CHANNEL, MESSAGE, START, "<|constrain|>", "<|end|>", "<|call|>", "<|return|>");

    private static final Pattern MARKER =
            Pattern.compile(MARKERS.stream().map(Pattern::quote).collect(Collectors.joining("|")));
    private static final Pattern RECIPIENT = Pattern.compile("to=functions\\.([A-Za-z0-9_.-]+)");

    private final StringBuilder text = new StringBuilder(); // not handled yet
    private boolean inHeader; // between the start of a message and its text
    private boolean isAnalysis;
    private boolean isCall;
    private int calls;

    @Override
    public int calls() {
        return calls;
    }

    @Override
    public boolean isReasoning() {
        return isAnalysis;
    }

    @Override
    public List<Part> add(String generated) {
        text.append(Required.argument("the text", generated));
        List<Part> parts = new ArrayList<>();
        while (inHeader ? readHeader(parts) : readBody(parts)) {
            // Each step handles a marker.
        }
        return parts;
    }

    private boolean readHeader(List<Part> parts) {
        int end = text.indexOf(MESSAGE);
        if (end < 0) {
            return false;
        }
        String header = text.substring(0, end);
        text.delete(0, end + MESSAGE.length());
        inHeader = false;
        Matcher recipient = RECIPIENT.matcher(header);
        isCall = recipient.find();
        isAnalysis = !isCall && header.contains(CHANNEL + "analysis");
        if (isCall) {
            String id = ToolFormat.HERMES.newId();
            parts.add(Part.call(calls++, id, recipient.group(1), ""));
        }
        return true;
    }

    /** Reads the text of a message, or what stands before the first one. */
    private boolean readBody(List<Part> parts) {
        // A marker is one token, so no text is held back that may begin one.
        Matcher marker = MARKER.matcher(text);
        String found = marker.find() ? marker.group() : null;
        int length = found == null ? text.length() : marker.start();
        if (length > 0) {
            String body = text.substring(0, length);
            parts.add(
                    isCall
                            ? Part.call(calls - 1, null, null, body)
                            : isAnalysis ? Part.reasoning(body) : Part.content(body));
        }
        text.delete(0, length);
        if (found == null) {
            return false;
        }
        text.delete(0, found.equals(CHANNEL) ? 0 : found.length()); // The header has its channel.
        inHeader = found.equals(CHANNEL) || found.equals(START);
        isCall &= !ENDS.contains(found);
        isAnalysis &= !ENDS.contains(found);
        return true;
    }
}
