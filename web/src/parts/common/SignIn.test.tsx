import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { api } from "../../api/client";
import { SignedIn } from "./SignIn";

afterEach(() => vi.unstubAllGlobals());

/** A service that answers only once the right token was sent. */
function guarded() {
  let isSignedIn = false;
  const json = (status: number, body: unknown) =>
    new Response(JSON.stringify(body), {
      status,
      headers: { "content-type": status < 400 ? "application/json" : "application/problem+json" },
    });
  vi.stubGlobal("fetch", async (request: Request) => {
    if (request.url.endsWith("/session") && request.method === "POST") {
      isSignedIn = ((await request.json()) as { token: string }).token === "tnr_right";
      return isSignedIn
        ? json(200, { required: true, name: "me", role: "viewer", expires_at: null })
        : json(401, { title: "Unauthorized", detail: "this token is not valid" });
    }
    return isSignedIn
      ? json(200, { items: [], next_page_token: null })
      : json(401, { title: "Unauthorized", detail: "a token is needed" });
  });
}

function Page() {
  const { data } = useQuery({ queryKey: ["experiments"], queryFn: () => api.experiments({}), retry: false });
  return <p>{data ? "the list" : "waiting"}</p>;
}

function show() {
  render(
    <MantineProvider>
      <QueryClientProvider client={new QueryClient()}>
        <SignedIn>
          <Page />
        </SignedIn>
      </QueryClientProvider>
    </MantineProvider>,
  );
}

test("a service that asks for a token gets one, and the page loads", async () => {
  guarded();
  show();
  const field = await screen.findByLabelText(/Token/);
  fireEvent.change(field, { target: { value: "tnr_wrong" } });
  fireEvent.click(screen.getByRole("button", { name: "Sign in" }));
  await screen.findByText("this token is not valid");
  fireEvent.change(field, { target: { value: " tnr_right " } });
  fireEvent.click(screen.getByRole("button", { name: "Sign in" }));
  await screen.findByText("the list");
  await waitFor(() => expect(screen.queryByRole("button", { name: "Sign in" })).toBeNull());
});

test("a service with an identity provider offers to sign in there, and to return to the page", async () => {
  window.history.replaceState(null, "", "/experiments/exp_1?view=chart");
  vi.stubGlobal("fetch", (request: Request) => {
    const isSession = request.url.endsWith("/session");
    const body = isSession
      ? { required: true, name: null, role: null, expires_at: null, project: null, sign_in_url: "/auth/login" }
      : { title: "Unauthorized", detail: "a token is needed" };
    return Promise.resolve(
      new Response(JSON.stringify(body), {
        status: isSession ? 200 : 401,
        headers: { "content-type": isSession ? "application/json" : "application/problem+json" },
      }),
    );
  });
  show();
  const link = await screen.findByRole("link", { name: "Sign in with your organization" });
  expect(link.getAttribute("href")).toBe("/auth/login?next=%2Fexperiments%2Fexp_1%3Fview%3Dchart");
});
