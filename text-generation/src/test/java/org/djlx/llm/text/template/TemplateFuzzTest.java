// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Random templates, half of them damaged: each is rendered or refused, whatever it is. {@code
 * -Dtest.templates=N -Dtest.seed=N} runs more of them, or others.
 */
@Timeout(value = 60, unit = TimeUnit.MINUTES)
class TemplateFuzzTest {

    private static final String[] PIECES = {
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "-",
        "+",
        "|",
        "(",
        ")",
        "[",
        "]",
        "'",
        "\"",
        "\\",
        ".",
        ":",
        ",",
        "=",
        "**",
        "~",
        " is ",
        " in ",
        " if ",
        "{% endfor %}",
        "{% else %}",
        "{% raw %}",
        "{% macro m(a) %}",
        "{{ m(1) }}",
        "99999999999999999999",
        "* 99999999",
        "1e999",
        "\uD83D",
        "\u0000",
        "{% for x in range(99999) %}",
        "[::-1]",
        "|join",
        "|list",
        "|tojson",
        "{% set x = x ~ x %}",
        "loop.",
        "ns.a"
    };

    @Test
    @SuppressWarnings("unchecked") // The data is a JSON object.
    void anyTemplateIsRenderedOrRefused() {
        int count = Integer.getInteger("test.templates", 3000);
        long seed = Long.getLong("test.seed", 1);
        RandomTemplates templates = new RandomTemplates(seed);
        Random random = new Random(seed);
        int rendered = 0;
        long slowest = 0;
        String slow = "";
        for (int i = 0; i < count; i++) {
            String template = "{% set ns = namespace(a=1, b='B') %}" + templates.next();
            for (int n = i % 2 == 0 ? 0 : 1 + random.nextInt(4); n > 0; n--) {
                template = damage(template, random);
            }
            Map<String, Object> data = TemplateTest.GSON.fromJson(templates.data(), Map.class);
            long begin = System.nanoTime();
            try {
                Template.parse(template).render(data);
                rendered++;
            } catch (IllegalArgumentException e) {
                assertTrue(e.getMessage().startsWith("the model's chat template"), e::getMessage);
            } catch (Throwable e) {
                throw new AssertionError("template " + i + " of seed " + seed + ": " + template, e);
            }
            long time = System.nanoTime() - begin;
            slow = time > slowest ? template : slow;
            slowest = Math.max(slowest, time);
        }
        System.out.printf(
                "%d of %d templates rendered, the slowest in %.1f s: %s%n",
                rendered, count, slowest / 1e9, slow);
        assertTrue(rendered > count / 10, "most templates are refused");
    }

    private static String damage(String template, Random random) {
        int begin = random.nextInt(template.length() + 1);
        int end = Math.min(template.length(), begin + random.nextInt(6));
        String piece = PIECES[random.nextInt(PIECES.length)];
        return switch (random.nextInt(4)) {
            case 0 -> template.substring(0, begin) + template.substring(end);
            case 1 -> template.substring(0, begin) + piece + template.substring(end);
            case 2 ->
                    template.substring(0, begin)
                            + template.substring(begin, end).repeat(3)
                            + template.substring(end);
            default -> template.substring(0, begin) + piece + template.substring(begin);
        };
    }
}
