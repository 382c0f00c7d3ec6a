import "./styles";
import "./main.css";
import "./parts/common/keptFocus";

import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode, Suspense, type ComponentType, type ReactNode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter, matchPath, Route, Routes } from "react-router";
import { api, ApiError } from "./api/client";
import { ROOT } from "./api/root";
import { App } from "./App";
import { keys } from "./live/keys";
import { NotFoundPage } from "./pages/NotFoundPage";
import { usePrinting } from "./print";
import { theme, variables } from "./theme";
import { lazily } from "./parts/common/lazily";

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2000,
      // Do not retry a request that was refused. Retry a request to a service that is down, with growing pauses.
      retry: (count, error) => error instanceof ApiError && error.unreachable && count < 2,
      networkMode: "always",
      refetchOnWindowFocus: false,
    },
    mutations: { networkMode: "always" },
  },
});

type Load = () => Promise<{ default: ComponentType }>;

const PAGES: [path: string, load: Load][] = [
  ["/", () => import("./pages/ExperimentsPage")],
  ["/experiments", () => import("./pages/ExperimentsPage")],
  ["/experiments/:id", () => import("./pages/ExperimentPage")],
  ["/compare", () => import("./pages/ComparePage")],
  ["/new", () => import("./pages/NewExperimentPage")],
  ["/cluster", () => import("./pages/ClusterPage")],
  ["/settings", () => import("./pages/SettingsPage")],
  ["/trials/:id", () => import("./pages/TrialPage")],
];

const address = window.location.pathname.slice(ROOT.length - 1) || "/";
const opened = PAGES.find(([path]) => matchPath(path, address));

/** Return a page. The one that is opened first is loaded already; the others are loaded when they are needed. */
function element([path, load]: [string, Load], first: ComponentType | undefined) {
  const Page = first && path === opened?.[0] ? first : lazily(load);
  return (
    <Suspense fallback={null}>
      <Page />
    </Suspense>
  );
}

/** The page in the colors that the user chose, but light on paper. */
function Themed({ children }: { children: ReactNode }) {
  const printing = usePrinting();
  return (
    <MantineProvider
      theme={theme}
      cssVariablesResolver={variables}
      defaultColorScheme="auto"
      {...(printing ? { forceColorScheme: "light" as const } : {})}
      // All variables are computed here. The style sheet with the default ones would be 4 KB more to load.
      deduplicateCssVariables={false}
    >
      {children}
    </MantineProvider>
  );
}

function start(first: ComponentType | undefined) {
  createRoot(document.getElementById("root")!).render(
    <StrictMode>
      <Themed>
        <QueryClientProvider client={client}>
          <BrowserRouter basename={ROOT}>
            <Routes>
              <Route element={<App />}>
                {PAGES.map((page) => (
                  <Route key={page[0]} path={page[0]} element={element(page, first)} />
                ))}
                <Route path="*" element={<NotFoundPage />} />
              </Route>
            </Routes>
          </BrowserRouter>
        </QueryClientProvider>
      </Themed>
    </StrictMode>,
  );
}

// Ask for the data of the first page at once, while the rest of the bundle is still running.
const experiment = matchPath("/experiments/:id", address)?.params.id;
if (experiment?.startsWith("exp_")) {
  void client.prefetchQuery({
    queryKey: keys.experiment(experiment),
    queryFn: ({ signal }) => api.experiment(experiment, signal),
  });
}
// Wait for the first page instead of drawing a frame without it: React would then wait a third of a second before it
// shows the page. If the page cannot be loaded, `lazily` tries again.
if (opened)
  opened[1]().then(
    ({ default: page }) => start(page),
    () => start(undefined),
  );
else start(undefined);
